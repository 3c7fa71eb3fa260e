cluster "demo" {
  simulated {}
}

overlay "savings" {
  price_adjustment = "-28%"
  require "kubernetes.io/hostname" { in = ["a"] }
}
