cluster "demo" {
  simulated {}
}

buffer "headroom" {
  pod { requests = { cpu = 2 } }
}
