cluster "demo" {
  simulated {}
}

pool "general" {
  limits {
    cpu = 100
  }
}
