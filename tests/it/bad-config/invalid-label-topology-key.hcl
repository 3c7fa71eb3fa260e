cluster "demo" {
  simulated {}
}

scheduler {
  default_spread "the zone" {
    max_skew           = 1
    when_unsatisfiable = "DoNotSchedule"
  }
}
