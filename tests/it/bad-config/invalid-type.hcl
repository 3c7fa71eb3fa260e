cluster "demo" {
  simulated {}
}

variable "a" {
  type    = strng
  default = "x"
}

variable "b" {
  type    = list(string, number)
  default = []
}

pool "general" {
  annotations = { a = var.a, b = length(var.b) }
}
