cluster "demo" {
  simulated {}
}

scheduler {
  batch_idle = "10s"
  batch_max  = "1s"
}
