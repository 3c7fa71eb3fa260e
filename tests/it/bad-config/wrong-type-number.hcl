cluster "demo" {
  simulated {}
}

scheduler {
  node_price = "cheap"
}
