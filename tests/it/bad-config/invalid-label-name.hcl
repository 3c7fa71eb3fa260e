cluster "my cluster" {
  simulated {}
}

pool "general purpose" {}

outrigger {
  installation = "eu/platform"
}
