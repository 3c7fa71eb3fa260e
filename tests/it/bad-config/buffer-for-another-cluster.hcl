cluster "demo" {
  simulated {}
}

cluster "lab" {
  simulated {}
}

pool "general" {
  clusters = ["lab"]
}

buffer "headroom" {
  clusters = ["lab", "demo"]
  pool     = pool.general
  replicas = 4
  pod { requests = { cpu = 2 } }
}
