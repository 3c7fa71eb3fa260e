cluster "demo" {
  simulated {}
}

pool "general" {
  labels = {
    "team name"    = "a"
    "example.com/" = "b"
    owner          = "the platform team"
  }
}
