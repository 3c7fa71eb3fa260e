cluster "demo" {
  simulated {}
}

pool "general" {
  labels = { cluster = each.key }
}
