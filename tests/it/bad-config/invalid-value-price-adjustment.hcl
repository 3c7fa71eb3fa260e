cluster "demo" {
  simulated {}
}

overlay "unsigned" {
  price_adjustment = 0.1
  require "karpenter.k8s.aws/instance-family" { in = ["m7i"] }
}

overlay "too_much" {
  price_adjustment = "-120%"
  require "karpenter.k8s.aws/instance-family" { in = ["c7i"] }
}

overlay "words" {
  price_adjustment = "+half"
  require "karpenter.k8s.aws/instance-family" { in = ["r7i"] }
}
