cluster "demo" {
  simulated {}
}

pool "general" {
  expire_after      = "720h"
  expire_hard_after = "720h"
}
