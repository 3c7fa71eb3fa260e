cluster "demo" {
  zonal_shift = true
  binding     = "early"
  interruption { queue = "q" }
  simulated {}
}
