cluster "demo" {
  simulated {}
}

node_class "general" {
  connection_tracking {}
}

pool "general" {
  node_class = node_class.general
}
