cluster "demo" {
  simulated {}
}

buffer "headroom" {
  percentage = 10
  pod { requests = { cpu = 2 } }
}
