cluster "demo" {
  simulated {}
}

node_class "general" {
  network_interface { network_card_index = -1 }
  network_interface {
    network_card_index = 0
    device_index       = 0
    interface_type     = "efa"
  }
}

pool "general" {
  node_class = node_class.general
}
