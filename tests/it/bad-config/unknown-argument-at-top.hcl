cluster "demo" {
  simulated {}
}

dry_run = true
