cluster "demo" {
  simulated {}
}

pool "general" "spot" {
  weight = 10
}

scheduler "main" {}
