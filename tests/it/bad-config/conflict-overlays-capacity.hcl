cluster "demo" {
  simulated {}
}

overlay "one" {
  capacity = { "example.com/dev" = 1, "example.com/port" = 2 }
  require "karpenter.k8s.aws/instance-family" { in = ["m7i"] }
}

overlay "two" {
  capacity = { "example.com/port" = 4 }
  require "karpenter.k8s.aws/instance-family" { in = ["m7i"] }
}
