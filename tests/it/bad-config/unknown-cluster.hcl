cluster "demo" {
  simulated {}
}

pool "general" {
  clusters = ["demo", "dmeo"]
}
