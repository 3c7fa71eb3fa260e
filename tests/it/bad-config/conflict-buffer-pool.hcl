cluster "demo" {
  simulated {}
}

pool "general" {}

buffer "headroom" {
  pool     = pool.general
  replicas = 4
  pod {
    requests      = { cpu = 2 }
    node_selector = { "karpenter.sh/nodepool" = "general" }
  }
}
