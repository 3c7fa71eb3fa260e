cluster "demo" {
  simulated {}
}

schedule "work" {
  start    = "0 8 * * mon-fri"
  end      = "0 18 * * mon-fri"
  duration = "10h"
}

pool "general" {
  require "team" {
    in     = ["a"]
    not_in = ["b"]
  }
  disruption {
    budget {
      nodes    = 1
      during   = schedule.work
      schedule = "@daily"
      duration = "1h"
    }
  }
}
