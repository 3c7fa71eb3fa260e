cluster "demo" {
  simulated {}
}

buffer "headroom" {
  replicas = 4
  pod {
    requests      = { cpu = 2 }
    node_selector = { "kubernetes.io/hostname" = "a" }
  }
}
