# A working day: services scale up in the morning and down in the evening, and batch jobs run in
# waves. A zone has no capacity for the preferred type, and EC2 interrupts spot instances at noon.
#
#   outrigger simulate                 this scenario, which is built in
#   outrigger simulate FILE            any other scenario

scenario {
  title    = "a working day"
  start    = "2026-03-03T06:00:00Z"
  duration = "16h"
  boot     = "45s"
}

# Workloads.

workload "node-agent" {
  kind     = "daemonset"
  requests = { cpu = "50m", memory = "96Mi" }
  toleration "" {}
}

workload "log-shipper" {
  kind     = "daemonset"
  requests = { cpu = "100m", memory = "128Mi" }
  toleration "" {}
}

workload "web" {
  requests = { cpu = "500m", memory = "768Mi" }
  replicas = 8
  at "07:30" { replicas = 24 }
  at "08:30" { replicas = 60 }
  at "12:00" { replicas = 72 }
  at "17:30" { replicas = 40 }
  at "20:00" { replicas = 16 }
  at "21:00" { replicas = 8 }
  pdb { max_unavailable = 6 }
}

workload "checkout" {
  requests      = { cpu = "250m", memory = "512Mi" }
  replicas      = 6
  node_selector = { "karpenter.sh/capacity-type" = "on-demand" }
  at "08:00" { replicas = 24 }
  at "19:00" { replicas = 6 }
  pdb { max_unavailable = 1 }
}

workload "api" {
  requests      = { cpu = "1", memory = "2Gi" }
  replicas      = 6
  node_selector = { "karpenter.sh/capacity-type" = "on-demand" }
  at "08:00" { replicas = 20 }
  at "18:30" { replicas = 10 }
  at "21:00" { replicas = 6 }
  pdb { min_available = 4 }
}

workload "cache" {
  requests      = { cpu = "2", memory = "14Gi" }
  replicas      = 3
  node_selector = { "karpenter.sh/capacity-type" = "on-demand" }
  at "08:15" { replicas = 6 }
  at "20:30" { replicas = 3 }
  pdb { max_unavailable = 1 }
}

workload "search" {
  requests = { cpu = "1500m", memory = "6Gi" }
  replicas = 3
  at "09:00" { replicas = 10 }
  at "19:30" { replicas = 3 }
  require "kubernetes.io/arch" { in = ["arm64"] }
}

workload "reports" {
  kind     = "job"
  requests = { cpu = "900m", memory = "2Gi" }
  run_for  = "12m"
  at "06:30" { replicas = 30 }
  at "19:00" { replicas = 12 }
}

workload "encode" {
  kind          = "job"
  requests      = { cpu = "3500m", memory = "6Gi" }
  run_for       = "25m"
  node_selector = { team = "media" }
  at "10:30" { replicas = 48 }
  at "15:00" { replicas = 24 }
  toleration "dedicated" {
    value  = "batch"
    effect = "NoSchedule"
  }
}

# Unavailable capacity: one zone has none of the type that the batch jobs need, the other has one.

capacity {
  type          = "c6g.16xlarge"
  zone          = "us-east-1a"
  capacity_type = "spot"
  left          = 0
  from          = "10:00"
  until         = "12:30"
}

capacity {
  type          = "c6g.16xlarge"
  zone          = "us-east-1b"
  capacity_type = "spot"
  left          = 1
  from          = "10:00"
  until         = "12:30"
}

# Spot interruptions.

interruption {
  at    = "13:00"
  count = 2
}

# All other blocks are a configuration, as `outrigger run` reads it.

outrigger {
  installation = "simulation"
}

cluster "demo" {
  mode = "manage"
  simulated {}
}

pool "general" {
  require "karpenter.sh/capacity-type" { in = ["spot", "on-demand"] }
  require "kubernetes.io/arch" { in = ["amd64", "arm64"] }
  require "karpenter.k8s.aws/instance-family" {
    in = ["c6i", "m6i", "r6i", "c6g", "m6g", "r6g", "c7g", "m7g"]
  }
  require "topology.kubernetes.io/zone" { in = ["us-east-1a", "us-east-1b", "us-east-1c"] }
  limits       = { cpu = "400", nodes = 80 }
  expire_after = "never"
  startup_taint "demo.outrigger.dev/network" {
    effect = "NoSchedule"
  }
  disruption {
    consolidation     = "empty"
    consolidate_after = "3m"
    budget { nodes = "20%" }
  }
}

pool "batch" {
  labels = { team = "media" }
  require "karpenter.sh/capacity-type" { in = ["spot"] }
  require "karpenter.k8s.aws/instance-family" { in = ["c6g"] }
  require "topology.kubernetes.io/zone" { in = ["us-east-1a", "us-east-1b"] }
  taint "dedicated" {
    value  = "batch"
    effect = "NoSchedule"
  }
  limits       = { cpu = "240" }
  expire_after = "never"
  disruption {
    consolidation     = "empty"
    consolidate_after = "1m"
    budget { nodes = "100%" }
  }
}
