cluster "demo" {
  simulated {}
}

node_class "general" {
  ami { alias = "bottlerocket@latest" }
  kubelet {
    pods_per_core = 10
    cluster_dns   = ["10.0.0.10", "10.0.0.11"]
    extra         = { podPidsLimit = 1 }
  }
}

pool "general" {
  node_class = node_class.general
}
