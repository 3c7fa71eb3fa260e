cluster "demo" {
  simulated {}
}

pool "general" {
  require "karpenter.k8s.aws/instance-generation" {
    gte = 7
    lt  = 6
  }
}
