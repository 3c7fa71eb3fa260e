cluster "demo" {
  simulated {}
}

node_class "general" {
  bootstrap "k33s" {}
}

pool "general" {
  node_class = node_class.general
}
