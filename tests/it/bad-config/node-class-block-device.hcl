cluster "demo" {
  simulated {}
}

node_class "general" {
  block_device "/dev/xvda" {}
  block_device "/dev/xvdb" { volume_size = "500Mi" }
  block_device "/dev/xvdc" { volume_size = "65T" }
  block_device "/dev/xvdd" { volume_size = "big" }
  block_device "/dev/xvde" {
    volume_size = "10Gi"
    volume_type = "gp4"
    iops        = 10
    throughput  = 1
  }
  block_device "/dev/xvdf" {
    volume_size                = "10Gi"
    volume_initialization_rate = 100
  }
  block_device "/dev/xvdg" {
    snapshot_id                = "snap-1"
    volume_initialization_rate = 99
  }
  block_device "/dev/xvdh" {
    snapshot_id                = "1"
    volume_initialization_rate = 301
  }
  block_device "/dev/xvdi" {
    volume_size = "10Gi"
    kms_key_id  = "alias/key"
  }
  block_device "/dev/xvdj" {
    volume_size = "10Gi"
    volume_type = "io2"
    throughput  = 200
  }
  block_device "/dev/xvdk" {
    volume_size = "10Gi"
    volume_type = "gp2"
    iops        = 3000
  }
}

pool "general" {
  node_class = node_class.general
}
