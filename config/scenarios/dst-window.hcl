# Expired nodes are disrupted only at night, from one to five o'clock in Berlin. In this night, the
# clocks change from two to three. The window is an hour shorter and still ends at five.
#
#   outrigger simulate config/scenarios/dst-window.hcl

scenario {
  title    = "the clocks change in a window"
  start    = "2026-03-28T06:00:00Z"
  duration = "24h"
}

workload "agent" {
  kind     = "daemonset"
  requests = { cpu = "50m", memory = "64Mi" }
  toleration "" {}
}

workload "web" {
  requests = { cpu = "3", memory = "3Gi" }
  replicas = 130
  pdb { max_unavailable = 5 }
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
  expire_after = "12h"
  disruption {
    consolidation     = "empty"
    consolidate_after = "5m"
    budget { nodes = 1 }
    budget {
      nodes    = 0
      schedule = "0 5 * * *"
      duration = "20h"
      timezone = "Europe/Berlin"
    }
  }
}
