cluster "demo" {
  simulated {}
}

pool {
  weight = 10
}
