cluster "demo" {
  simulated {}
}

node_class "general" {
  bootstrap "eks" { token_file = "token" }
}

pool "general" {
  node_class = node_class.general
}
