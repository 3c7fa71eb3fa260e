cluster "demo" {
  max_unready = "45"
  simulated {}
}

pool "general" {
  repair {
    condition = "Ready"
    status    = "NotReady"
    after     = "10m"
  }
}
