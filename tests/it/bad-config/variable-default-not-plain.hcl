cluster "demo" {
  simulated {}
}

variable "name" {
  default = "${var.prefix}-a"
}

variable "prefix" {
  default = "p"
}

pool "general" {
  labels = { name = var.name, prefix = var.prefix }
}
