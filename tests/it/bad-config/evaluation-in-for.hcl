cluster "demo" {
  simulated {}
}

locals {
  regions = { eu = { zones = 3 }, us = { zones = "many" } }
  zones   = { for name, region in local.regions : name => region.zones + 1 }
}

pool "general" {
  annotations = local.zones
}
