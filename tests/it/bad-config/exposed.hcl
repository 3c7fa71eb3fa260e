outrigger {
  installation = "demo"
}

telemetry {
  listen = "0.0.0.0:9464"
}
