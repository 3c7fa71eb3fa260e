cluster "demo" {
  simulated {}
  unready_max = "30%"
}

scheduler {
  alternatives = 20
}

pool "general" {
  require "karpenter.sh/capacity-type" { in = ["spot"] }
}
