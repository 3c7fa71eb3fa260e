cluster "demo" {
  simulated {}
}

node_class "general" {
  user_data = "#!/bin/sh"
  ami { alias = "al2023@latest" }
  bootstrap "talos" {}
}

pool "general" {
  node_class = node_class.general
}
