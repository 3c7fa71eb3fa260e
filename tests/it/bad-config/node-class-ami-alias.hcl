cluster "demo" {
  simulated {}
}

node_class "general" {
  ami {
    alias         = "al2023@latest"
    ssm_parameter = "/a"
    name          = "a"
    owner         = "self"
    tags          = { a = "b" }
  }
  ami { alias = "ubuntu@latest" }
  ami { alias = "windows2022@2025.01" }
  ami { alias = "al2023:latest" }
  ami { alias = "@latest" }
  ami { alias = "al2023@v20250801-which-is-far-too-long" }
}

pool "general" {
  node_class = node_class.general
}
