cluster "demo" {
  simulated {}
}

node_class "general" {
  ami { alias = "bottlerocket@latest" }
  bootstrap "kubeadm" {
    mint                = true
    token_file          = "token"
    token_ssm_parameter = "/token"
    server              = "https://10.0.0.1"
  }
}

pool "general" {
  node_class = node_class.general
}
