cluster "demo" {
  simulated {}

  sweep "drift" {
    schedule = "0 8 30 2 *"
  }

  sweep "drifts" {
    schedule = "@daily"
  }
}

sweep "expiry" {
  schedule = "* * * * * *"
}

sweep "consolidation" {
  schedule = "0 2 * * *"
  timezone = "Europe/Berlinn"
  jitter   = "2h"
}
