cluster "demo" {
  simulated {}
}

pool "general" {
  weight = 10,
  expire_after = "720h"
}
