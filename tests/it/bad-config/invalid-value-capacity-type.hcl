cluster "demo" {
  simulated {}
}

pool "general" {
  require "karpenter.sh/capacity-type" {
    in = ["spot", "on_demand"]
  }
}
