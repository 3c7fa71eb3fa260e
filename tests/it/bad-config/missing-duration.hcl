cluster "demo" {
  simulated {}
}

schedule "work" {
  start = "0 8 * * mon-fri"
}

pool "general" {
  disruption {
    budget {
      nodes  = 1
      during = schedule.work
    }
    budget {
      nodes    = 2
      timezone = "UTC"
    }
  }
}
