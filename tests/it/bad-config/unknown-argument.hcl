cluster "demo" {
  simulated {}
}

pool "general" {
  weight = 10
  limts  = { cpu = 100 }
}
