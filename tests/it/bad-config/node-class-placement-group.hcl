cluster "demo" {
  simulated {}
}

node_class "general" {
  placement_group {}
}

pool "general" {
  node_class = node_class.general
}
