cluster "demo" {
  simulated {}
}

schedule "work" {
  start = "0 8 * * mon-fri"
  end   = "0 18 * * fri"
}

pool "general" {
  disruption {
    budget {
      nodes  = 1
      during = schedule.work
    }
  }
}
