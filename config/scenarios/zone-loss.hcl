# A zone fails for an hour, with all instances in it. No instance can be launched there in this time.
#
#   outrigger simulate config/scenarios/zone-loss.hcl

scenario {
  title    = "a zone is lost"
  start    = "2026-03-03T10:00:00Z"
  duration = "2h"
}

workload "agent" {
  kind     = "daemonset"
  requests = { cpu = "50m", memory = "64Mi" }
  toleration "" {}
}

workload "web" {
  requests = { cpu = "900m", memory = "1500Mi" }
  replicas = 60
  pdb { min_available = "80%" }
}

workload "store" {
  kind     = "statefulset"
  requests = { cpu = "1500m", memory = "6Gi" }
  replicas = 12
  pdb { max_unavailable = 1 }
}

outage "us-east-1b" {
  from  = "10:20"
  until = "11:20"
}

outrigger {
  installation = "simulation"
}

cluster "demo" {
  mode = "manage"
  simulated {}
}

pool "zone-a" {
  require "karpenter.sh/capacity-type" { in = ["on-demand"] }
  require "karpenter.k8s.aws/instance-family" { in = ["c6g", "m6g", "r6g"] }
  require "karpenter.k8s.aws/instance-cpu" { in = ["4"] }
  require "topology.kubernetes.io/zone" { in = ["us-east-1a"] }
  weight       = 10
  limits       = { nodes = 12 }
  expire_after = "never"
  disruption {
    consolidation     = "empty"
    consolidate_after = "5m"
  }
}

pool "zone-b" {
  require "karpenter.sh/capacity-type" { in = ["on-demand"] }
  require "karpenter.k8s.aws/instance-family" { in = ["c6g", "m6g", "r6g"] }
  require "karpenter.k8s.aws/instance-cpu" { in = ["4"] }
  require "topology.kubernetes.io/zone" { in = ["us-east-1b"] }
  weight       = 10
  limits       = { nodes = 12 }
  expire_after = "never"
  disruption {
    consolidation     = "empty"
    consolidate_after = "5m"
  }
}

pool "zone-c" {
  require "karpenter.sh/capacity-type" { in = ["on-demand"] }
  require "karpenter.k8s.aws/instance-family" { in = ["c6g", "m6g", "r6g"] }
  require "karpenter.k8s.aws/instance-cpu" { in = ["4"] }
  require "topology.kubernetes.io/zone" { in = ["us-east-1c"] }
  weight       = 10
  limits       = { nodes = 12 }
  expire_after = "never"
  disruption {
    consolidation     = "empty"
    consolidate_after = "5m"
  }
}
