cluster "demo" {
  simulated {}
}

pool "general" {
  weight = 10
  labels = { team = "a" }
  weight = 20
}
