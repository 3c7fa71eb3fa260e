cluster "demo" {
  simulated {}
}

pool "general" {
  weight              = 101
  launch_timeout      = "5s"
  registration_timeout = "48h"
  disruption {
    budget { nodes = "110%" }
  }
}
