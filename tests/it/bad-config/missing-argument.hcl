cluster "demo" {
  simulated {}
}

schedule "night" {
  duration = "8h"
}

pool "general" {
  taint "dedicated" {}
  disruption {
    budget {
      during = schedule.night
    }
  }
}
