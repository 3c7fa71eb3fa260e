cluster "demo" {
  simulated {}
}

pool "general" {
  weight = 10
}
}
