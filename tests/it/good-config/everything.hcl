# var owners=["platform", "data"]
# env BUILD=42
# secret pull_token=hunter2
outrigger {
  installation     = "platform-eu"
  required_version = ">= 0.1, < 9"
  dry_run          = false
}

variable "owners" {
  type        = list(string)
  description = "Teams, the first of which is asked first."
  validation {
    condition     = length(var.owners) > 0
    error_message = "there must be an owner."
  }
}

variable "sizes" {
  type    = object({ nodes = number, cpu = optional(number, 64) })
  default = { nodes = "12" }
}

locals {
  # In any order: each is evaluated after what it needs.
  tags     = merge(local.base, { Owner = one(slice(var.owners, 0, 1)) })
  base     = { Environment = "prod", Build = env("BUILD") }
  clusters = { for name, region in local.regions : "${name}-1" => region if name != "ap" }
  regions  = { eu = "eu-central-1", us = "us-east-1", ap = "ap-south-1" }
}

cluster "fleet" {
  for_each  = local.clusters
  name      = "k-${each.key}"
  region    = each.value
  mode      = startswith(each.key, "eu-") ? "manage" : "observe"
  tags      = local.tags
  finalizer = true
  adopt     = true
  kubeconfig {
    path    = "${path.config}/kubeconfig"
    context = each.key
  }
  proxy {
    url      = "http://bastion:3128"
    username = "outrigger"
    password = "not shown"
    no_proxy = ["10.0.0.0/8", ".internal"]
  }
  api {
    poll         = "30s"
    qps          = 50
    burst        = 100
    concurrency  = 8
    watch_list   = "off"
    watch_timeout = "2m"
  }
}

cluster "lab" {
  placement_hints = false
  limits          = { nodes = 20, cpu = 200 }
  max_unready     = 5
  undrained_max   = "10%"
  removed_pools   = "keep"
  disruption {
    budget { rate = "20/h" }
    budget {
      nodes   = "30%"
      rate    = "1/m"
      reasons = ["expired"]
      during  = schedule.night
    }
    window {
      action = "allow"
      during = schedule.night
    }
    cool_down {
      after_launch  = "10m"
      after_failure = "3m"
    }
  }
  simulated {
    catalog = "types.json"
    boot    = "2s"
    address = "127.0.0.1:7070"
  }
}

node_class "general" {
  for_each            = toset(keys(local.clusters))
  clusters            = ["k-${each.value}"]
  role                = "node-${each.key}"
  detailed_monitoring = true
  user_data           = <<-EOT
    #!/bin/sh
    %{ for owner in var.owners ~}
    echo ${owner} >> /etc/owners
    %{ endfor ~}
    echo ${secret("pull_token")} > /etc/token
  EOT
  tags                = merge(local.tags, { Name = "${each.key}-node" })
  ami_family          = "al2023"
  ami {
    name  = "my-image-*"
    owner = "self"
  }
  subnet { tags = { "karpenter.sh/discovery" = each.key } }
  security_group { id = "sg-0123456789" }
  block_device "/dev/xvda" {
    volume_size = "50Gi"
    volume_type = "gp3"
    encrypted   = true
  }
  metadata_options { http_tokens = "required" }
  kubelet {
    max_pods        = 110
    system_reserved = { cpu = "100m", memory = "200Mi" }
  }
}

schedule "night" {
  start    = "0 22 * * *"
  end      = "0 6 * * *"
  timezone = "Europe/Berlin"
}

defaults "pool" {
  node_class               = node_class.general
  weight                   = 5
  expire_after             = "336h"
  expire_hard_after        = "400h"
  termination_grace_period = "24h"
  disruption {
    consolidation     = "empty"
    consolidate_after = "5m"
    on_blocked        = "abort"
    drain_timeout     = "20m"
  }
}

pool "general" {
  clusters     = ["k-*"]
  weight       = 50
  labels       = { team = var.owners[0], "example.com/tier" = 1 }
  annotations  = { "example.com/note" = "anything goes here: ü" }
  limits       = { cpu = var.sizes.cpu * 1.5, memory = "8000Gi", nodes = var.sizes.nodes, "nvidia.com/gpu" = 0 }
  expire_after = "never"
  require "karpenter.sh/capacity-type" { in = ["spot", "on-demand"] }
  require "karpenter.k8s.aws/instance-category" {
    in         = ["c", "m", "r"]
    min_values = 2
  }
  require "karpenter.k8s.aws/instance-generation" {
    gt = 5
    lt = 9
  }
  require "example.com/tier" { not_in = ["0"] }
  require "example.com/legacy" { exists = false }
  require "beta.kubernetes.io/arch" { in = ["amd64"] }
  taint "dedicated" {
    effect = "NoSchedule"
    value  = "general"
  }
  taint "dedicated" { effect = "NoExecute" }
  repair {
    condition = "KernelDeadlock"
    status    = "True"
    after     = "10m"
  }
  repair {
    condition = "NetworkingReady"
    after     = "never"
  }
  startup_taint "node.cilium.io/agent-not-ready" { effect = "NoExecute" }
  disruption {
    consolidate_after     = "never"
    safety                = "conservative"
    min_age               = "10m"
    utilization_threshold = 50
    spot_to_spot_min_types    = 15
    unneeded_for          = "10m"
    on_blocked            = "force"
    budget { nodes = "20%" }
    budget {
      nodes   = 0
      reasons = ["drifted", "underutilized"]
      during  = schedule.night
    }
    budget {
      nodes    = 3
      schedule = "@daily"
      duration = "1h30m"
      timezone = "America/New_York"
    }
    window {
      action   = "deny"
      reasons  = ["drifted", "expired"]
      schedule = "0 9 1 * mon"
      duration = "1h"
    }
  }
}

pool "spare" {
  clusters               = ["lab", "k-eu-1"]
  launch_timeout         = "90s"
  registration_timeout   = "10m"
  initialization_timeout = "1h"
}

# Static: what defaults say of weight and consolidation is not for it.
pool "fixed" {
  clusters = ["k-eu-1"]
  replicas = 3
  limits   = { nodes = 4 }
  taint "dedicated" {
    effect = "NoSchedule"
    value  = "fixed"
  }
}

overlay "savings_plan" {
  price_adjustment = "-28%"
  require "karpenter.k8s.aws/instance-family" { in = ["m7i", "m7g"] }
}

overlay "measured" { # of one weight with the other; whether they meet only the catalog knows
  clusters = ["k-*"]
  price    = "0.25"
  capacity = { "example.com/dev" = 2, "hugepages-2Mi" = "1Gi" }
  require "karpenter.sh/nodepool" { in = ["general"] }
  require "karpenter.k8s.aws/instance-generation" { gte = 7 }
}

overlay "heavy" {
  clusters         = ["lab"]
  weight           = 10
  price_adjustment = "+0.015"
  require "topology.kubernetes.io/zone" { not_in = ["a"] }
}

buffer "headroom" { # where there is such a pool
  pool     = pool.general
  replicas = 4
  limits   = { memory = "32Gi" }
  during   = schedule.night
  pod {
    requests      = { cpu = "500m", memory = "4Gi", "nvidia.com/gpu" = 1 }
    node_selector = { "kubernetes.io/arch" = "arm64" }
    toleration "gpu" { effect = "NoSchedule" }
    toleration "team" { value = "platform" }
  }
}

buffer "web" {
  clusters   = ["lab"]
  replicas   = 1
  percentage = 10
  scalable {
    kind      = "Deployment"
    namespace = "shop"
    name      = "web"
  }
}

fleet {
  limits      = { nodes = 2000, cpu = 40000 }
  max_disrupted_per_reload = "20%"
  budget { nodes = 10 }
  budget { rate = "50/d" }
}

scheduler {
  batch_idle              = "500ms"
  batch_max               = "5s"
  preference_policy       = "ignore"
  min_values_policy       = "best_effort"
  node_overhead_price              = 0.02
  max_launch_options            = 20
  alternative_price_ratio = 1.5
  priority_cutoff         = -10
  schedulers              = ["default-scheduler", "batch"]
  default_spread "topology.kubernetes.io/zone" {
    max_skew           = 5
    when_unsatisfiable = "ScheduleAnyway"
  }
  default_spread "kubernetes.io/hostname" {
    max_skew             = 3
    when_unsatisfiable   = "DoNotSchedule"
    min_domains          = 2
    node_affinity_policy = "Ignore"
    node_taints_policy   = "Honor"
  }
}

telemetry {
  listen = "[::1]:9464"
  log {
    format = "journald"
    level  = "debug"
  }
  metrics {
    names    = ["outrigger"]
    per_node = true
  }
}
