cluster "demo" {
  simulated {}
}

pool "general" {
  labels = {
    "kubernetes.io/hostname" = "a"
    "karpenter.sh/nodepool"  = "b"
  }
  require "karpenter.sh/initialized" { exists = true }
  taint "karpenter.sh/disrupted" { effect = "NoSchedule" }
}
