# Five hundred nodes were launched in the same minute, and all expire while a budget blocks their
# disruption. At seven, the budget permits it, and all nodes are due in the same minute.
#
#   outrigger simulate config/scenarios/expiry-herd.hcl

scenario {
  title    = "an expiry herd"
  start    = "2026-03-03T00:00:00Z"
  duration = "9h"
}

workload "agent" {
  kind     = "daemonset"
  requests = { cpu = "50m", memory = "64Mi" }
  toleration "" {}
}

workload "web" {
  requests = { cpu = "1200m", memory = "1Gi" }
  replicas = 500
  pdb { max_unavailable = "20%" }
}

outrigger {
  installation = "simulation"
}

cluster "demo" {
  mode = "manage"
  simulated {}
}

pool "general" {
  require "karpenter.sh/capacity-type" { in = ["on-demand"] }
  require "karpenter.k8s.aws/instance-family" { in = ["c6g", "m6g"] }
  require "karpenter.k8s.aws/instance-cpu" { in = ["2"] }
  require "topology.kubernetes.io/zone" { in = ["us-east-1a", "us-east-1b", "us-east-1c"] }
  expire_after = "6h"
  disruption {
    consolidation     = "empty"
    consolidate_after = "1m"
    budget { nodes = "10%" }
    budget {
      nodes    = 0
      schedule = "0 0 * * *"
      duration = "7h"
    }
  }
}
