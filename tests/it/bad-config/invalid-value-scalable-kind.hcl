cluster "demo" {
  simulated {}
}

buffer "headroom" {
  percentage = 10
  scalable {
    kind      = "DaemonSet"
    namespace = "shop"
    name      = "web"
  }
}
