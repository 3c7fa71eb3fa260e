cluster "demo" {
  mode = "managed"
  simulated {}
}

telemetry {
  listen = "9464"
  log { format = "pretty" }
}
