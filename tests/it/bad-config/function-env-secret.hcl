cluster "demo" {
  simulated {}
}

pool "general" {
  annotations = {
    host  = env("HOST_NAME")
    token = secret("token")
  }
}
