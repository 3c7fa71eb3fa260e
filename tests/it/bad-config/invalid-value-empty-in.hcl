cluster "demo" {
  simulated {}
}

pool "general" {
  require "team" { in = [] }
}
