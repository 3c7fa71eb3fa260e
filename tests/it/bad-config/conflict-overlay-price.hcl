cluster "demo" {
  simulated {}
}

overlay "savings" {
  price            = 0.1
  price_adjustment = "-28%"
  require "karpenter.k8s.aws/instance-family" { in = ["m7i"] }
}
