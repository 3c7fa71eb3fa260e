cluster "demo" {
  simulated {}
}

pool "general" {
  disruption {
    budget {
      nodes   = 1
      reasons = ["interrupted"]
    }
  }
}
