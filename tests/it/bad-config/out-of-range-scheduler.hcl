cluster "demo" {
  simulated {}
}

scheduler {
  node_overhead_price              = 10.5
  max_launch_options            = 0
  alternative_price_ratio = 0.5
}
