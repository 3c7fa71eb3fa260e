cluster "demo" {
  simulated {}
}

locals {
  tags = { team = "a" }
}

pool "general" {
  labels = local.labels
  annotations = local.tags
}
