cluster "demo" {
  simulated {}
}

locals {
  tags = merge(local.tags, { a = "b" })
}

pool "general" {
  annotations = local.tags
}
