cluster "demo" {
  simulated {}
}

pool "general" {
  expire_after             = "30d"
  termination_grace_period = 600
  launch_timeout           = "never"
  disruption {
    consolidate_after = "soon"
  }
}
