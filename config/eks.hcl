# An EKS cluster, managed. Outrigger runs anywhere with AWS credentials; the cluster is found by its
# name in EKS, so there is no kubeconfig. Every argument and its default: docs/CONFIGURATION.md.

outrigger {
  installation = "example" # the same on all hosts; only its instances are ever touched
}

locals {
  discovery = { "karpenter.sh/discovery" = "prod" }
}

cluster "prod" {
  region = "eu-central-1"
  mode   = "manage"
  eks {}                               # endpoint and CA are asked for
  interruption { queue = "outrigger" } # one for all clusters of the account and region
}

node_class "general" {
  role = "outrigger-node"
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
