cluster "demo" {
  simulated {}
}

pool "general" {
  labels = { team = uper("a"), made = timestamp() }
}
