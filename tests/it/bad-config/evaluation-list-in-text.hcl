cluster "demo" {
  simulated {}
}

pool "general" {
  labels = { zones = "in ${["a", "b"]}" }
}
