cluster "demo" {
  simulated {}
}

pool "general" {
  taints "dedicated" {
    effect = "NoSchedule"
  }
}
