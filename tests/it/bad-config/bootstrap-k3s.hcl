cluster "demo" {
  simulated {}
}

node_class "general" {
  bootstrap "k3s" {
    mint    = false
    server  = "http://10.0.0.1"
    version = "$(reboot)"
  }
}

pool "general" {
  node_class = node_class.general
}
