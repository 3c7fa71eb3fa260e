cluster "demo" {
  simulated {}
}

overlay "savings" {
  price_adjustment = "-28%"
  require "karpenter.k8s.aws/instance-family" {
    in         = ["m7i", "m7g"]
    min_values = 2
  }
}
