cluster "demo" {
  simulated {}
}

pool "spare" {
  replicas = 3
  weight   = 10
  limits   = { nodes = 5, cpu = 100 }
  disruption {
    consolidation     = "empty"
    consolidate_after = "5m"
  }
}
