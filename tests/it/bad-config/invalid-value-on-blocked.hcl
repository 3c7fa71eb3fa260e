cluster "demo" {
  finalizer = "karpenter.sh/termination"
  simulated {}
}

pool "general" {
  disruption {
    on_blocked    = "evict"
    drain_timeout = "5s"
  }
}
