cluster "demo" {
  for_each = ["east", "west"]
  limits   = { nodes = 100 }
  simulated {}
}
