cluster "demo" {
  simulated {}
}

cluster "other" {
  name = "demo"
  simulated {}
}
