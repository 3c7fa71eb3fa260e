cluster "demo" {
  simulated {}
}

pool "general" {}

overlay "savings" {
  price_adjustment = "-28%"
  require "karpenter.sh/nodepool" { in = ["general", "genral"] }
}
