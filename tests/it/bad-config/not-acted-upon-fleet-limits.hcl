cluster "demo" {
  simulated {}
}

fleet {
  limits = { cpu = 1000 }
}
