cluster "demo" {
  simulated {}
}

node_class "general" {
  block_device "/dev/xvda" {
    volume_size = "10Gi"
    root_volume = true
  }
  block_device "/dev/xvdb" {
    volume_size = "10Gi"
    root_volume = true
  }
}

pool "general" {
  node_class = node_class.general
}
