cluster "demo" {
  simulated {}
}

schedule "short" {
  start    = "0 8 * *"
  duration = "8h"
}

schedule "never" {
  start    = "0 8 30 2 *"
  duration = "8h"
}

pool "general" {
  disruption {
    budget {
      nodes  = 1
      during = schedule.short
    }
    budget {
      nodes  = 2
      during = schedule.never
    }
  }
}
