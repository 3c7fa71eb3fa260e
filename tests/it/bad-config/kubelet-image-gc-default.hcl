cluster "demo" {
  simulated {}
}

node_class "general" {
  kubelet {
    image_gc_high_threshold_percent = 80
  }
}

pool "general" {
  node_class = node_class.general
}
