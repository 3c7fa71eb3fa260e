cluster "demo" {
  simulated {}
}

pool "general" {
  disruption {
    budget {
      nodes    = 1
      schedule = "0 8 * * *"
      duration = "8h"
      timezone = "Europe/Berln"
    }
  }
}
