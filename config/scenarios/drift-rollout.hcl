# The instance family of a pool changes, and all its nodes are replaced within its budget. One workload
# allows few unavailable pods and stays available. A pod that must not be disrupted runs to its end.
#
#   outrigger simulate config/scenarios/drift-rollout.hcl

scenario {
  title    = "a rollout of a new instance family"
  start    = "2026-03-03T10:00:00Z"
  duration = "4h"
  settle   = "30m"
}

workload "agent" {
  kind     = "daemonset"
  requests = { cpu = "50m", memory = "64Mi" }
  toleration "" {}
}

workload "web" {
  requests = { cpu = "900m", memory = "1500Mi" }
  replicas = 80
  pdb { min_available = "95%" }
}

workload "store" {
  kind     = "statefulset"
  requests = { cpu = "1500m", memory = "6Gi" }
  replicas = 10
  pdb { max_unavailable = 1 }
}

workload "report" {
  kind           = "job"
  requests       = { cpu = "3", memory = "3Gi" }
  replicas       = 1
  run_for        = "2h"
  do_not_disrupt = "true"
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
  expire_after = "never"
  disruption {
    consolidation     = "empty"
    consolidate_after = "5m"
    budget { nodes = "10%" }
  }
}

# This reload drifts most nodes of the cluster. With `max_disrupted_per_reload`, a user would have to
# accept it first.
reload "10:30" {
  pool "general" {
    require "karpenter.sh/capacity-type" { in = ["on-demand"] }
    require "karpenter.k8s.aws/instance-family" { in = ["m6g"] }
    require "karpenter.k8s.aws/instance-cpu" { in = ["4"] }
    expire_after = "never"
    disruption {
      consolidation     = "empty"
      consolidate_after = "5m"
      budget { nodes = "10%" }
    }
  }
}
