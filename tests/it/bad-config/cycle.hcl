cluster "demo" {
  simulated {}
}

locals {
  name = "${local.prefix}-a"
  prefix = upper(local.region)
  region = split("-", local.name)[0]
}

pool "general" {
  labels = { name = local.name }
}
