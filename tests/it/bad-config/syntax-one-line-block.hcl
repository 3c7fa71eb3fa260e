cluster "demo" {
  simulated {}
}

pool "general" {
  disruption { consolidation = "empty" consolidate_after = "1m" }
}
