cluster "demo" {
  simulated {}
}

pool "general" {
  require "karpenter.k8s.aws/instance-tenancy" {
    in = ["dedicated", "host"]
  }
}
