cluster "demo" {
  simulated {}
}

buffer "headroom" {
  replicas = 4
  pod { requests = { cpu = 0 } }
}

buffer "slots" {
  replicas = 4
  pod { requests = { pods = 1 } }
}
