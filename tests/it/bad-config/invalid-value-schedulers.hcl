cluster "demo" {
  simulated {}
}

scheduler {
  schedulers = ["default-scheduler", ""]
}
