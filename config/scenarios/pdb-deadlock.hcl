# PodDisruptionBudgets that allow no disruption keep some expired nodes. All other nodes are replaced.
# In the end, a user scales one of the workloads to zero, and its node is disrupted.
#
#   outrigger simulate config/scenarios/pdb-deadlock.hcl

scenario {
  title    = "disruption budgets that block all disruption"
  start    = "2026-03-03T10:00:00Z"
  duration = "5h"
  settle   = "30m"
}

workload "agent" {
  kind     = "daemonset"
  requests = { cpu = "50m", memory = "64Mi" }
  toleration "" {}
}

workload "web" {
  requests = { cpu = "900m", memory = "1500Mi" }
  replicas = 12
  pdb { max_unavailable = 2 }
}

workload "never" {
  requests = { cpu = "3", memory = "3Gi" }
  replicas = 2
  at "14:00" { replicas = 0 }
  pdb { max_unavailable = 0 }
}

workload "always" {
  requests = { cpu = "3", memory = "3Gi" }
  replicas = 2
  pdb { min_available = "100%" }
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
  require "karpenter.k8s.aws/instance-cpu" { in = ["4"] }
  require "topology.kubernetes.io/zone" { in = ["us-east-1a", "us-east-1b", "us-east-1c"] }
  expire_after = "2h30m"
  disruption {
    consolidation     = "empty"
    consolidate_after = "5m"
    budget { nodes = "50%" }
  }
}
