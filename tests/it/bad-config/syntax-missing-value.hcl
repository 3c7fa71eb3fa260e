cluster "demo" {
  simulated {}
}

pool "general" {
  weight =
  expire_after = "never"
}
