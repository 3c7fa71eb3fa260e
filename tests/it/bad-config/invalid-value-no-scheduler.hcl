cluster "demo" {
  simulated {}
}

scheduler {
  schedulers = []
}
