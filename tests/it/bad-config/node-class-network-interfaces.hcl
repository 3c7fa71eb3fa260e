cluster "demo" {
  simulated {}
}

node_class "general" {
  efa = false
  network_interface {
    network_card_index = 0
    device_index       = 0
    interface_type     = "efa-only"
  }
  network_interface {
    network_card_index = 0
    device_index       = 0
    interface_type     = "efa-only"
  }
}

pool "general" {
  node_class = node_class.general
}
