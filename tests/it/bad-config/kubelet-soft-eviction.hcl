cluster "demo" {
  simulated {}
}

node_class "general" {
  kubelet {
    eviction_soft              = { "memory.available" = "1Gi", "nodefs.available" = "10%" }
    eviction_soft_grace_period = { "memory.available" = "1m", "pid.available" = "1m" }
  }
}

pool "general" {
  node_class = node_class.general
}
