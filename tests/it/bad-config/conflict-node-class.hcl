cluster "demo" {
  simulated {}
}

node_class "general" {
  role             = "node"
  instance_profile = "node"
  ami {
    alias = "al2023@latest"
    id    = "ami-0123456789"
  }
  subnet {}
}

pool "general" {
  node_class = node_class.general
}
