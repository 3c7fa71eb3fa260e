cluster "demo" {
  simulated {}
}

variable "team" {}

pool "general" {
  labels = { team = var.team }
}
