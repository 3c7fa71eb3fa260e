# A managed EKS cluster. Outrigger runs on any host with AWS credentials. It finds the cluster by its
# name in EKS and needs no kubeconfig. Every argument and its default: docs/CONFIGURATION.md.

outrigger {
  installation = "example" # the same on all hosts; only its instances are managed
}

locals {
  discovery = { "karpenter.sh/discovery" = "prod" }
}

cluster "prod" {
  region = "eu-central-1"
  mode   = "manage"
  eks {}                               # endpoint and CA are read from EKS
  interruption { queue = "outrigger" } # one queue for all clusters of the account and region
}

node_class "general" {
  instance_profile = "outrigger-node-prod" # created by terraform/modules/cluster
  ami { alias = "al2023@latest" }
  subnet { tags = local.discovery }
  security_group { tags = local.discovery }
  block_device "/dev/xvda" {
    volume_size = "50Gi"
    encrypted   = true
  }
  kubelet {
    eviction_hard = { "memory.available" = "100Mi", "nodefs.available" = "10%" }
  }
}

pool "general" {
  node_class = node_class.general
  limits     = { cpu = 1000, nodes = 100 }
  require "karpenter.sh/capacity-type" { in = ["spot", "on-demand"] }
  require "karpenter.k8s.aws/instance-category" { in = ["c", "m", "r"] }
}
