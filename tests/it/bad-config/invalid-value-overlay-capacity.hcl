cluster "demo" {
  simulated {}
}

overlay "bigger" {
  capacity = { memory = "16Gi", "example.com/dev" = 1 }
  require "karpenter.k8s.aws/instance-family" { in = ["m7i"] }
}
