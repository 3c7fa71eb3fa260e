variable "secret" {
  default   = "correcthorse"
  sensitive = true
}

cluster "demo" {
  simulated {}
}

node_class "general" {
  role = "a/${var.secret}"
  tags = { "aws:${var.secret}" = "a" }
  ami { alias = "${var.secret}@latest" }
  subnet { tags = { (var.secret) = "" } }
  kubelet {
    eviction_hard = { (var.secret) = "1" }
    extra         = { (var.secret) = "1" }
    cluster_dns   = [var.secret]
  }
  bootstrap "k3s" { server = var.secret }
}

pool "general" {
  node_class = node_class.general
}
