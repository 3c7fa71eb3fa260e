outrigger {
  installation = "example"
}

cluster "prod" {
  mode   = "manage"
  region = "eu-central-1"
}
