cluster "demo" {
  simulated {}
}

outrigger {
  required_version = ">= 7.0, < 8.0"
}
