cluster "demo" {
  simulated {}
}

pool "general" {
  taint "dedicated" {
    effect = "NoSchedule"
    value  = "a"
  }
  taint "dedicated" {
    effect = "NoSchedule"
    value  = "b"
  }
}
