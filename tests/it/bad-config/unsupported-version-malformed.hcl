cluster "demo" {
  simulated {}
}

outrigger {
  required_version = "latest"
}
