cluster "demo" {
  simulated {}
}

pool "general" {
  require "kubernetes.io/arch" { in = ["amd64"] }
  require "kubernetes.io/arch" { in = ["arm64"] }
}
