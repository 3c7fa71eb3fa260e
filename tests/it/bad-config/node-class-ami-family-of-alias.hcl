cluster "demo" {
  simulated {}
}

node_class "general" {
  ami_family = "al2"
  ami { alias = "al2023@latest" }
}

pool "general" {
  node_class = node_class.general
}
