cluster "demo" {
  simulated {}
}

variable "environment" {
  type = string
}

pool "general" {
  labels = { environment = var.environment }
}
