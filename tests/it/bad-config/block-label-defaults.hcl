cluster "demo" {
  simulated {}
}

defaults "node_class" {
  weight = 10
}
