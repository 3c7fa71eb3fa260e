cluster "demo" {
  simulated {}
}

pool "spare" {
  replicas = 3
}

buffer "headroom" {
  pool     = pool.spare
  replicas = 4
  pod { requests = { cpu = 2 } }
}
