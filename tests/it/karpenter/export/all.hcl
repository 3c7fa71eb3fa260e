# Everything that Karpenter can say, and much that it cannot.
cluster "shop" {
  region = "eu-central-1"
  limits = { nodes = 100 }
  tags   = { Environment = "prod" }
  eks {}
  disruption {
    budget { rate = "20/h" }
    cool_down { after_launch = "10m" }
  }
}

scheduler {
  batch_idle = "2s"
}

schedule "office_hours" {
  start    = "0 8 * * mon-fri"
  duration = "10h"
}

node_class "general" {
  role                       = "nodes"
  tags                       = { Name = "node" }
  reserved_enis              = 1
  vm_memory_overhead_percent = 6.5
  efa                        = false
  user_data                  = <<-EOT
    #!/bin/bash
    echo "$${HOME}"
  EOT
  ami { alias = "al2023@latest" }
  subnet { tags = { cluster = "shop" } }
  security_group { tags = { cluster = "shop" } }
  block_device "/dev/xvda" { volume_size = "1500M" }
  kubelet {
    max_pods = 110
    extra    = { podPidsLimit = 1024 }
  }
}

node_class "bare" {
  ami_family = "custom"
  bootstrap "k3s" { server = "https://10.0.0.1:6443" }
}

pool "general" {
  node_class        = node_class.general
  weight            = 10
  limits            = { cpu = 100.5, memory = "400Gi", nodes = 50 }
  launch_timeout    = "7m"
  expire_hard_after = "1000h"
  require "karpenter.sh/capacity-type" { in = ["spot", "on-demand"] }
  require "karpenter.k8s.aws/instance-cpu" {
    not_in = ["7"]
    gt     = 3
    lt     = 65
  }
  require "example.com/a" { exists = false }
  taint "example.com/b" { effect = "NoSchedule" }
  disruption {
    consolidation     = "balanced"
    consolidate_after = "never"
    min_age           = "1h"
    budget { nodes = "10%" }
    budget {
      nodes   = 0
      reasons = ["underutilized", "drifted", "expired"]
      during  = schedule.office_hours
    }
    budget { rate = "20/h" }
    budget {
      nodes    = 1
      schedule = "@daily"
      duration = "1h"
      timezone = "Europe/Berlin"
    }
    window {
      action = "allow"
      during = schedule.office_hours
    }
  }
  repair {
    condition = "Odd"
    after     = "10m"
  }
}

pool "static" {
  node_class  = node_class.bare
  replicas    = 2
  auto_repair = false
  disruption {
    budget { rate = "1/m" }
  }
}

overlay "savings" {
  price_adjustment = "-12.5%"
  require "karpenter.k8s.aws/instance-family" { in = ["m7i"] }
}

buffer "room" {
  pool     = pool.general
  replicas = 3
  during   = schedule.office_hours
  pod {
    requests = { cpu = "500m", memory = "1Gi" }
    toleration "example.com/x" { effect = "NoExecute" }
  }
}

buffer "share" {
  pool       = pool.general
  percentage = 10
  pod { requests = { cpu = 1 } }
  scalable {
    kind      = "StatefulSet"
    namespace = "shop"
    name      = "db"
  }
}
