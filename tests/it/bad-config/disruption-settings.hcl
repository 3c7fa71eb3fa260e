cluster "demo" {
  simulated {}
}

defaults "pool" {
  disruption { utilization_threshold = 50 }
}

pool "general" {
  disruption {
    safety                = "careful"
    min_age               = "never"
    utilization_threshold = 0
    spot_to_spot_min_types    = 61
    unneeded_for          = "1d"
  }
}

pool "fixed" {
  replicas = 2
  disruption {
    safety                = "conservative"
    min_age               = "1h"
    utilization_threshold = 50
    unneeded_for          = "10m"
  }
}
