cluster "demo" {
  simulated {}
}

pool "general" {}

buffer "headroom" {
  pool     = pool.genral
  replicas = 4
  pod { requests = { cpu = 2 } }
}
