cluster "demo" {
  simulated {}
}

pool "general" {
  require "team" {}
  require "zone" { min_values = 2 }
}
