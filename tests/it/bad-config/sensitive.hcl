# var password=hunter2
cluster "demo" {
  simulated {}
}

variable "password" {
  type      = string
  sensitive = true
  validation {
    condition     = length(var.password) >= 12
    error_message = "the password ${var.password} is too short."
  }
}

variable "pin" {
  type      = number
  sensitive = true
  default   = "s3cr3t"
}

pool "general" {
  weight      = var.password
  annotations = { token = tonumber(var.password), pin = var.pin }
}
