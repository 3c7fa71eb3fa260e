cluster "demo" {
  simulated {}
}

node_class "general" {}

pool "general" {
  node_class = "general"
}
