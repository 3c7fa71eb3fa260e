cluster "demo" {
  simulated {}
}

node_class "general" {
  bootstrap "rke2" {}
  bootstrap "k3s" {}
}

pool "general" {
  node_class = node_class.general
}
