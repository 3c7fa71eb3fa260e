cluster "demo" {
  simulated {}
}

buffer "headroom" {
  replicas = 4
  pod {
    requests = { cpu = 2 }
    toleration "dedicated to" { effect = "NoSchedule" }
    toleration "dedicated" { value = "a b" }
  }
}
