cluster "demo" {
  unready_max = "45"
  simulated {}
}

pool "general" {
  repair {
    condition = "Ready"
    status    = "NotReady"
    after     = "10m"
  }
}
