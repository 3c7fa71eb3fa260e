cluster "demo" {
  simulated {}
}

pool "fixed" {
  replicas = 3
}
