# A k3s cluster on EC2. Nodes join with a bootstrap token that Outrigger creates in the cluster for each
# launch. The token expires after two hours. Every argument and its default: docs/CONFIGURATION.md.

outrigger {
  installation = "example" # the same on all hosts; only its instances are managed
}

cluster "lab" {
  region = "eu-central-1"
  mode   = "manage"
  kubeconfig {
    path    = "/etc/outrigger/kubeconfig"
    context = "default"
  }
}

node_class "general" {
  instance_profile = "k3s-agent"
  ami_family       = "custom"
  ami {
    name  = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-*-server-*"
    owner = "099720109477" # Canonical
  }
  subnet { tags = { Cluster = "lab" } }
  security_group { tags = { Cluster = "lab" } }
  block_device "/dev/sda1" { volume_size = "30Gi" }
  bootstrap "k3s" {
    server  = "https://10.0.0.10:6443"
    version = "v1.33.4+k3s1"
  }
  kubelet {
    max_pods      = 110
    kube_reserved = { cpu = "100m", memory = "512Mi" }
  }
}

pool "general" {
  node_class = node_class.general
  limits     = { nodes = 20 }
  require "kubernetes.io/arch" { in = ["amd64", "arm64"] }
}
