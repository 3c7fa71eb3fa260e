cluster "demo" {
  simulated {}
}

buffer "headroom" {
  pool     = "pool.general"
  replicas = 4
  pod { requests = { cpu = 2 } }
}
