cluster "demo" {
  simulated {}
}

node_class "general" {
  ami { id = "ami-1" }
  ami { name = "a" }
}

pool "general" {
  node_class = node_class.general
}
