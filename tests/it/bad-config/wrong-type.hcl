cluster "demo" {
  simulated {}
}

pool "general" {
  weight   = "ten"
  clusters = "demo"
  labels   = ["team"]
}
