cluster "demo" {
  simulated {}
}

scheduler {
  node_price              = 10.5
  alternatives            = 0
  alternative_price_ratio = 0.5
}
