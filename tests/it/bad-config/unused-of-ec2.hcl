cluster "demo" {
  role_arn    = "arn:aws:iam::123456789012:role/outrigger"
  zonal_shift = true
  disable_dry_run = true
  isolated_vpc = true
  binding     = "early"
  interruption { queue = "q" }
  simulated {}
}
