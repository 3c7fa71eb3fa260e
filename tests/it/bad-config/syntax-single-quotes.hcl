cluster "demo" {
  simulated {}
}

pool "general" {
  expire_after = '720h'
}
