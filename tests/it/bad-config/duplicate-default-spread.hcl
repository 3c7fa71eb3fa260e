cluster "demo" {
  simulated {}
}

scheduler {
  default_spread "topology.kubernetes.io/zone" {
    max_skew           = 5
    when_unsatisfiable = "ScheduleAnyway"
  }
  default_spread "topology.kubernetes.io/zone" {
    max_skew           = 1
    when_unsatisfiable = "DoNotSchedule"
  }
  default_spread "topology.kubernetes.io/zone" {
    max_skew           = 2
    when_unsatisfiable = "DoNotSchedule"
  }
}
