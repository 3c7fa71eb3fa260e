# EC2 interrupts two of every five nodes of a spot fleet within two minutes.
#
#   outrigger simulate config/scenarios/spot-storm.hcl

scenario {
  title    = "a spot storm"
  start    = "2026-03-03T10:00:00Z"
  duration = "1h"
}

workload "agent" {
  kind     = "daemonset"
  requests = { cpu = "50m", memory = "64Mi" }
  toleration "" {}
}

workload "web" {
  requests = { cpu = "900m", memory = "1500Mi" }
  replicas = 160
  max_skew = 5
  pdb { max_unavailable = "10%" }
}

workload "cache" {
  kind     = "statefulset"
  requests = { cpu = "1500m", memory = "6Gi" }
  replicas = 20
  pdb { max_unavailable = 1 }
}

interruption {
  at     = "10:20"
  count  = "40%"
  within = "2m"
}

outrigger {
  installation = "simulation"
}

cluster "demo" {
  mode = "manage"
  simulated {}
}

pool "general" {
  require "karpenter.sh/capacity-type" { in = ["spot"] }
  require "karpenter.k8s.aws/instance-family" { in = ["c6g", "m6g", "r6g"] }
  require "karpenter.k8s.aws/instance-cpu" { in = ["4"] }
  require "topology.kubernetes.io/zone" { in = ["us-east-1a", "us-east-1b", "us-east-1c"] }
  expire_after = "never"
  disruption {
    consolidation     = "empty"
    consolidate_after = "5m"
  }
}
