cluster "demo" {
  simulated {}
}

scheduler {
  node_overhead_price = "cheap"
}
