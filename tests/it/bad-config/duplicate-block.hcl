cluster "demo" {
  simulated {}
}

scheduler {
  batch_idle = "1s"
}

scheduler {
  batch_max = "20s"
}
