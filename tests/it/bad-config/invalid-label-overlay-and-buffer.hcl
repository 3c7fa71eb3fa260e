cluster "demo" {
  simulated {}
}

overlay "all savings" {
  price_adjustment = "-28%"
  require "karpenter.k8s.aws/instance-family" { in = ["m7i"] }
}

buffer "head/room" {
  replicas = 4
  pod { requests = { cpu = 2 } }
}
