cluster "demo" {
  simulated {}
}

node_class "al2023" {}

pool "general" {
  node_class = node_class.al2032
}
