cluster "demo" {
  simulated {}
}

pool "general" {
  weight = 10 / 0
}

pool "others" {
  weight   = 10 % 0
  replicas = 1.5 / 0.0
}
