cluster "demo" {
  simulated {}
}

pool "general" {
  labels = { team = "ml" }
  require "team" { in = ["platform", "data"] }
}
