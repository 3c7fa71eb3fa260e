# A cluster in which Karpenter keeps running. Outrigger only reads and plans, with Karpenter's node role, so
# that you can compare the plans.

provider "aws" {
  region = var.region
}

module "region" {
  source = "../../modules/region"

  installation = var.installation
}

module "cluster" {
  source = "../../modules/cluster"

  installation             = var.installation
  cluster_name             = var.cluster_name
  mode                     = "observe"
  daemon_role_arn          = module.iam.role_arn
  create_node_role         = false
  node_role_arn            = var.karpenter_node_role_arn
  create_node_access_entry = false
  discovery_tags           = { "karpenter.sh/discovery" = var.cluster_name }
}

# Karpenter has its own queue and deletes unknown messages from it. Outrigger uses this queue after it
# adopts the nodes.
module "iam" {
  source = "../../modules/iam"

  installation = var.installation
  regions = {
    (var.region) = {
      clusters       = [module.cluster.rights]
      queue_arns     = [module.region.queue_arn]
      queue_key_arns = module.region.queue_key_arns
    }
  }
}

locals {
  clusters = { (var.cluster_name) = module.cluster.outrigger }
}

module "configuration" {
  source = "../../modules/render"

  installation = var.installation
  clusters     = local.clusters
}

module "host" {
  source = "../../modules/host"

  vpc_id                = var.vpc_id
  subnet_ids            = var.subnet_ids
  instance_profile_name = module.iam.instance_profile_name
  package               = var.package
  package_sha256        = var.package_sha256
  configuration = {
    "terraform.hcl" = module.configuration.configuration
    "pools.hcl"     = file("${path.module}/pools.hcl")
  }
}
