cluster "demo" {
  simulated {}
}

pool "general" {
  consolidate_after = "1m"
}
