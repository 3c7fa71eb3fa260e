cluster "demo" {
  simulated {}
}

pool "general" {
  disruption = {
    consolidation = "empty"
  }
}
