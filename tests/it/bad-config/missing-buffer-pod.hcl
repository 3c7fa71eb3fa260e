cluster "demo" {
  simulated {}
}

buffer "headroom" {
  replicas = 4
}
