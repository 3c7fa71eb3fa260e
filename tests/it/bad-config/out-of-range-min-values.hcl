cluster "demo" {
  simulated {}
}

pool "general" {
  require "karpenter.k8s.aws/instance-family" {
    in         = ["m7i", "m7g"]
    min_values = 3
  }
}
