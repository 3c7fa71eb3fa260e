cluster "demo" {
  simulated {}
}

pool "general" {
  labels = { team = platform }
}
