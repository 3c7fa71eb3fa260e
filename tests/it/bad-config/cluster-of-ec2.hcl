cluster "prod" {
  region      = "eu-central-1"
  role_arn    = "outrigger"
  zonal_shift = true
  binding     = "late"
  tags        = { "karpenter.sh/nodepool" = "a" }
  interruption {
    queue     = "http://queue"
    rebalance = "replace"
  }
}

cluster "lab" {
  eks {
    name         = "-"
    endpoint     = "10.0.0.1"
    ca_data      = "-----BEGIN CERTIFICATE-----"
    service_cidr = "10.0.0.0"
  }
}

cluster "quiet" {
  region = "eu-central-1"
  interruption {}
}
