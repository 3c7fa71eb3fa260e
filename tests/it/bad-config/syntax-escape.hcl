cluster "demo" {
  simulated {}
}

pool "general" {
  labels = { path = "a\/b" }
}
