# The instance family of a pool changes during the day. The nodes drift at once, and are replaced at
# night: the drift sweep finds them at 02:00 local time. This is the night in which the clock moves from
# 02:00 to 03:00, so the sweep runs at 03:00.
#
#   outrigger simulate config/scenarios/nightly-sweep.hcl

scenario {
  title    = "a nightly drift sweep"
  start    = "2026-03-28T14:00:00Z"
  duration = "14h"
  settle   = "30m"
}

workload "agent" {
  kind     = "daemonset"
  requests = { cpu = "50m", memory = "64Mi" }
  toleration "" {}
}

workload "web" {
  requests = { cpu = "900m", memory = "1500Mi" }
  replicas = 40
  pdb { min_available = "95%" }
}

outrigger {
  installation = "simulation"
}

cluster "demo" {
  mode = "manage"
  simulated {}

  sweep "drift" {
    schedule = "0 2 * * *"
    timezone = "Europe/Berlin"
  }
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
reload "15:00" {
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
