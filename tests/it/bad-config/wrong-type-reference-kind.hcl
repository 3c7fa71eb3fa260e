cluster "demo" {
  simulated {}
}

schedule "night" {
  start    = "0 22 * * *"
  duration = "8h"
}

pool "general" {
  node_class = schedule.night
}
