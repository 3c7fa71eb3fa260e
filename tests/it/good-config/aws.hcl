# Everything that can be said of EC2, each argument at least once.
outrigger {
  installation = "it"
}

cluster "eks" {
  region      = "eu-central-1"
  mode        = "manage"
  role_arn    = "arn:aws:iam::123456789012:role/team/outrigger"
  external_id = "outrigger-prod"
  zonal_shift = true
  binding     = "early"
  tags        = { Environment = "prod" }
  eks {
    name         = "prod"
    endpoint     = "https://0123456789ABCDEF.gr7.eu-central-1.eks.amazonaws.com"
    ca_data      = base64encode("-----BEGIN CERTIFICATE-----")
    service_cidr = "10.100.0.0/16"
  }
  interruption {
    queue     = "outrigger"
    rebalance = "replace_first"
  }
}

cluster "bare" {
  region          = "us-east-1"
  mode            = "manage"
  disable_dry_run = true
  node_endpoint   = "https://api.example.com:6443"
  kubeconfig { path = "kubeconfig" }
  interruption { queue = "https://sqs.us-east-1.amazonaws.com/123456789012/outrigger" }
}

cluster "own-cloud" {
  mode = "manage"
  kubeconfig { path = "/etc/kubeconfig" }
  exec {
    command = ["./my-cloud", "--region", "x"]
    catalog = "types.json"
  }
}

cluster "own-eks" {
  mode   = "manage"
  region = "eu-west-1"
  eks {}
  exec { command = ["my-cloud"] }
}

node_class "full" {
  ami_family                 = "al2023"
  role                       = "outrigger-node"
  associate_public_ip        = false
  ip_prefix_count            = 2
  user_data                  = "#!/bin/sh\ntrue\n"
  tags                       = { Name = "node", "example.com/a" = "" }
  detailed_monitoring        = true
  instance_store_policy      = "raid0"
  context                    = "a-context"
  reserved_enis              = 1
  vm_memory_overhead_percent = 6.5
  ami { id = "ami-0123456789abcdef0" }
  ami { ssm_parameter = "/images/node" }
  ami {
    name  = "node-*"
    owner = "123456789012"
    tags  = { release = "stable", signed = "*" }
  }
  ami { tags = { latest = true } }
  subnet { id = "subnet-0123456789abcdef0" }
  subnet { tags = { "karpenter.sh/discovery" = "prod", private = "*" } }
  security_group { id = "sg-0123456789abcdef0" }
  security_group { name = "nodes" }
  security_group { tags = { "karpenter.sh/discovery" = "prod" } }
  capacity_reservation { id = "cr-0123456789abcdef0" }
  capacity_reservation {
    owner                   = "123456789012"
    instance_match_criteria = "targeted"
    tags                    = { team = "ml" }
  }
  capacity_reservation { instance_match_criteria = "open" }
  placement_group { name = "close" }
  block_device "/dev/xvda" {
    volume_size                = "50Gi"
    volume_type                = "gp3"
    iops                       = 4000
    throughput                 = 250
    encrypted                  = true
    kms_key_id                 = "arn:aws:kms:eu-central-1:123456789012:key/1"
    snapshot_id                = "snap-0123456789abcdef0"
    volume_initialization_rate = 200
    delete_on_termination      = false
    root_volume                = true
  }
  block_device "/dev/xvdb" { volume_size = "1.5T" }
  block_device "/dev/xvdc" {
    volume_size = "1G"
    volume_type = "io2"
    iops        = 100
  }
  metadata_options {
    http_endpoint               = "disabled"
    http_protocol_ipv6          = "enabled"
    http_put_response_hop_limit = 2
    http_tokens                 = "optional"
  }
  network_interface {
    network_card_index = 0
    device_index       = 0
  }
  network_interface {
    network_card_index = 0
    device_index       = 1
    interface_type     = "efa-only"
  }
  network_interface {
    network_card_index = 1
    device_index       = 1
    interface_type     = "efa-only"
  }
  connection_tracking {
    tcp_established_timeout = "120h"
    udp_stream_timeout      = "60s"
    udp_timeout             = "30s"
  }
  cpu_options { nested_virtualization = "enabled" }
  kubelet {
    max_pods                        = 58
    pods_per_core                   = 0
    cluster_dns                     = ["10.100.0.10", "fd00::10"]
    system_reserved                 = { cpu = "100m", memory = "200Mi", "ephemeral-storage" = "1Gi", pid = 100 }
    kube_reserved                   = { cpu = 1, memory = "1.5Gi" }
    eviction_hard                   = { "memory.available" = "5%", "nodefs.inodesFree" = "2.25%", "pid.available" = "100%" }
    eviction_soft                   = { "memory.available" = "500Mi", "imagefs.available" = "0%" }
    eviction_soft_grace_period      = { "memory.available" = "1m30s", "imagefs.available" = "0s" }
    eviction_max_pod_grace_period   = 60
    image_gc_high_threshold_percent = 75
    image_gc_low_threshold_percent  = 70
    cpu_cfs_quota                   = false
    extra = {
      podPidsLimit                    = 1024
      cpuManagerPolicy                = "static"
      featureGates                    = { KubeletCrashLoopBackOffMax = true }
      crashLoopBackOff                = { maxContainerRestartPeriod = "1m" }
      evictionMinimumReclaim          = { "memory.available" = "100Mi" }
      shutdownGracePeriodByPodPriority = [{ priority = 1000, shutdownGracePeriodSeconds = 30 }]
    }
  }
}

# What a node class is where it says no more than it has to.
node_class "least" {
  instance_profile = "node"
  efa              = false
  ami { alias = "bottlerocket@v1.44.0" }
  subnet { id = "subnet-1" }
  security_group { id = "sg-1" }
  placement_group { id = "pg-0123456789abcdef0" }
}

# The alias finds the images; everything else is the author's.
node_class "windows" {
  role       = "node"
  ami_family = "custom"
  ami { alias = "windows2022@latest" }
  subnet { id = "subnet-1" }
  security_group { id = "sg-1" }
}

node_class "kubeadm" {
  role       = "node"
  ami_family = "custom"
  ami { id = "ami-1" }
  subnet { id = "subnet-1" }
  security_group { id = "sg-1" }
  bootstrap "kubeadm" {}
}

node_class "k3s" {
  role       = "node"
  ami_family = "custom"
  ami { id = "ami-1" }
  subnet { id = "subnet-1" }
  security_group { id = "sg-1" }
  bootstrap "k3s" {
    server              = "https://10.0.0.1:6443"
    token_ssm_parameter = "/k3s/agent-token"
    version             = "v1.33.4+k3s1"
  }
}

node_class "rke2" {
  role       = "node"
  ami_family = "al2023"
  ami { id = "ami-1" }
  subnet { id = "subnet-1" }
  security_group { id = "sg-1" }
  bootstrap "rke2" {
    mint       = false
    token_file = "token"
  }
}

node_class "talos" {
  role       = "node"
  ami_family = "custom"
  ami {
    name  = "talos-v1.12.*-amd64"
    owner = "540036508848"
  }
  subnet { id = "subnet-1" }
  security_group { id = "sg-1" }
  bootstrap "talos" { machine_config_file = "/run/credentials/worker.yaml" }
}

node_class "talos-ssm" {
  role       = "node"
  ami_family = "custom"
  ami { id = "ami-1" }
  subnet { id = "subnet-1" }
  security_group { id = "sg-1" }
  bootstrap "talos" { machine_config_ssm_parameter = "/talos/worker" }
}

node_class "template" {
  role       = "node"
  ami_family = "custom"
  ami { id = "ami-1" }
  subnet { id = "subnet-1" }
  security_group { id = "sg-1" }
  bootstrap "custom" {
    template = "join --token {{ token }}"
    mint     = true
  }
}

pool "full" {
  clusters   = ["eks"]
  node_class = node_class.full
}

pool "least" {
  clusters   = ["eks"]
  node_class = node_class.least
}

pool "windows" {
  clusters   = ["eks"]
  node_class = node_class.windows
}

pool "kubeadm" {
  clusters   = ["bare"]
  node_class = node_class.kubeadm
}

pool "k3s" {
  clusters   = ["bare"]
  node_class = node_class.k3s
}

pool "rke2" {
  clusters   = ["bare"]
  node_class = node_class.rke2
}

pool "talos" {
  clusters   = ["bare"]
  node_class = node_class.talos
}

pool "talos-ssm" {
  clusters   = ["bare"]
  node_class = node_class.talos-ssm
}

pool "template" {
  clusters   = ["bare"]
  node_class = node_class.template
}

pool "own" {
  clusters = ["own-cloud", "own-eks"]
}

cluster "elsewhere" {
  region = "eu-central-1"
  eks {
    role_arn = "arn:aws:iam::210987654321:role/outrigger"
  }
  api { watch_list = "auto" }
}
