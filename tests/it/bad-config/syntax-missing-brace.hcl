cluster "demo" {
  simulated {}
}

pool "general" {
  weight = 10
  disruption {
    consolidation = "empty"

  labels = { team = "a" }
}

pool "gpu" {
  weight = 20
}
