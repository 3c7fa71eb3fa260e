cluster "demo" {
  simulated {}
}

variable "environment" {
  default = "prod"
}

pool "general" {
  labels = { environment = var.enviroment, again = var.environment }
}
