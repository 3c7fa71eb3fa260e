cluster "demo" {
  simulated {}
}

pool "general" {
  taint "dedicated" { effect = "noschedule" }
}
