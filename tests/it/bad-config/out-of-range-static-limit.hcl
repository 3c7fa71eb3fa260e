cluster "demo" {
  simulated {}
}

pool "spare" {
  replicas = 3
  limits   = { nodes = 2 }
}
