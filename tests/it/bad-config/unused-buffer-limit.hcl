cluster "demo" {
  simulated {}
}

buffer "headroom" {
  replicas = 4
  limits   = { cpu = 16, "nvidia.com/gpu" = 2 }
  pod { requests = { cpu = 2 } }
}
