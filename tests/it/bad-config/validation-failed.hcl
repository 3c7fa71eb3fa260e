# var environment=dev
cluster "demo" {
  simulated {}
}

variable "environment" {
  type    = string
  default = "prod"
  validation {
    condition     = contains(["prod", "staging"], var.environment)
    error_message = "environment must be prod or staging, not ${var.environment}."
  }
}

pool "general" {
  labels = { environment = var.environment }
}
