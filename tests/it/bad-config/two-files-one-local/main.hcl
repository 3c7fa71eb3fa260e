cluster "demo" {
  simulated {}
}

locals {
  team = "a"
}

pool "general" {
  labels = { team = local.team }
}
