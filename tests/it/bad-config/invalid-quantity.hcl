cluster "demo" {
  simulated {}
}

pool "general" {
  limits = {
    cpu    = "100 cores"
    memory = "4000GB"
    nodes  = "10%"
    pods   = -1
  }
}
