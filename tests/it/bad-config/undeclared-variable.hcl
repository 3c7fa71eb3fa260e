# var enviroment=staging
cluster "demo" {
  simulated {}
}

variable "environment" {
  default = "prod"
}

pool "general" {
  labels = { environment = var.environment }
}
