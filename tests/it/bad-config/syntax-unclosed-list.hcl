cluster "demo" {
  simulated {}
}

pool "general" {
  clusters = ["demo",
  weight   = 10
}
