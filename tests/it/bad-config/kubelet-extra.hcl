cluster "demo" {
  simulated {}
}

node_class "general" {
  kubelet {
    extra = {
      maxPods            = 10
      registerWithTaints = []
      providerID         = "a"
      podPidLimit        = 1
      maxOpenFiles       = "many"
      runtimeRequestTimeout = "1 minute"
      authentication     = { webhook = { enable = true }, anonymous = { enabled = "no" } }
    }
  }
}

pool "general" {
  node_class = node_class.general
}
