cluster "demo" {
  simulated {}
}

pool "general" {
  require "kubernetes.io/arch" {
    in = ["amd64", ["arm64"]]
  }
}
