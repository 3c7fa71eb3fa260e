cluster "demo" {
  simulated {}
}

scheduler {
  default_spread "topology.kubernetes.io/zone" {
    max_skew           = 5
    when_unsatisfiable = "ScheduleAnyway"
    min_domains        = 3
  }
}
