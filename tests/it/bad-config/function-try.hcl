cluster "demo" {
  simulated {}
}

locals {
  settings = { a = 1 }
}

pool "general" {
  weight = try(local.settings.b, local.settings.c)
}
