cluster "demo" {
  simulated {}
}

overlay "one" {
  weight = 5
  price  = 0.1
  require "karpenter.k8s.aws/instance-family" { in = ["m7i", "m7g"] }
}

overlay "two" {
  weight           = 5
  price_adjustment = "-28%"
  require "karpenter.k8s.aws/instance-family" { in = ["m7g"] }
  require "karpenter.sh/capacity-type" { in = ["spot"] }
}
