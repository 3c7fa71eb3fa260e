cluster "demo" {
  simulated {}
}

pool "general" {
  budget {
    nodes = 1
  }
}
