cluster "demo" {
  simulated {}
  disruption {
    budget {
      reasons = ["empty"]
    }
    budget { rate = "20/w" }
    budget { rate = "0/h" }
    window { action = "permit" }
    window {
      action = "allow"
    }
    window {
      action   = "deny"
      duration = "1h"
    }
    cool_down { after_launch = "never" }
  }
}

fleet {
  budget {}
}

pool "general" {
  disruption {
    budget { nodes = 0 }
  }
}
