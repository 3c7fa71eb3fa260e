# A configuration to start from. Every argument and its default: docs/CONFIGURATION.md.
# `outrigger validate` checks it. `outrigger plan` shows the launches and disruptions it would cause.

outrigger {
  installation = "example" # the same on all hosts; only its instances are managed
}

variable "region" {
  type    = string
  default = "eu-central-1"
}

locals {
  tags = { Environment = "prod", ManagedBy = "outrigger" }
}

# Without `mode = "manage"`, Outrigger only observes a cluster: it plans, but changes nothing.
cluster "demo" {
  region = var.region
  tags   = local.tags
  kubeconfig { path = "/etc/outrigger/kubeconfig" }
}

node_class "general" {
  instance_profile = "outrigger-node"
  tags             = merge(local.tags, { Name = "demo-node" })
  ami { alias = "al2023@latest" }
  subnet { tags = { "outrigger.dev/cluster" = "demo" } }
  security_group { tags = { "outrigger.dev/cluster" = "demo" } }
  block_device "/dev/xvda" {
    volume_size = "50Gi"
    encrypted   = true
  }
}

schedule "office_hours" {
  start    = "0 8 * * mon-fri"
  duration = "10h"
  timezone = "Europe/Berlin"
}

# Values of arguments that pools do not set.
defaults "pool" {
  node_class               = node_class.general
  termination_grace_period = "24h"
}

pool "general" {
  weight = 10
  limits = { cpu = 1000, memory = "4000Gi", nodes = 100 }
  require "karpenter.sh/capacity-type" { in = ["spot", "on-demand"] }
  require "karpenter.k8s.aws/instance-category" { in = ["c", "m", "r"] }
  require "karpenter.k8s.aws/instance-generation" { gte = 6 }
  disruption {
    consolidation     = "balanced"
    consolidate_after = "1m"
    budget { nodes = "10%" }
    budget { # in office hours, only empty nodes are disrupted
      nodes   = 0
      reasons = ["underutilized", "drifted"]
      during  = schedule.office_hours
    }
  }
}

pool "gpu" {
  labels       = { team = "ml" }
  limits       = { "nvidia.com/gpu" = 16 }
  expire_after = "never"
  require "karpenter.k8s.aws/instance-gpu-manufacturer" { in = ["nvidia"] }
  taint "nvidia.com/gpu" { effect = "NoSchedule" }
}

telemetry {
  listen = "127.0.0.1:9464"
  log { format = "journald" }
}
