cluster "demo" {
  simulated {}
}

node_class "general" {
  kubelet {
    max_pods                        = -1
    pods_per_core                   = -1
    cluster_dns                     = ["10.0.0.10", "dns.example"]
    system_reserved                 = { cpu = "-100m", gpu = 1, memory = "1GB" }
    kube_reserved                   = { pid = "many" }
    eviction_hard                   = { "memory.avail" = "1Gi", "nodefs.available" = "101%", "imagefs.available" = "-1Gi" }
    eviction_soft                   = { "pid.available" = "1.234%" }
    eviction_soft_grace_period      = { "pid.available" = "2 minutes" }
    eviction_max_pod_grace_period   = -1
    image_gc_high_threshold_percent = 101
    image_gc_low_threshold_percent  = -1
  }
}

pool "general" {
  node_class = node_class.general
}
