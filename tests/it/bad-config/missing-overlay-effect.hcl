cluster "demo" {
  simulated {}
}

overlay "savings" {
  capacity = {}
  require "karpenter.k8s.aws/instance-family" { in = ["m7i"] }
}
