# A cluster that already has nodes. The example uses the existing node role, instance profile and access
# entry.

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
  mode                     = var.mode
  adopt                    = var.adopt
  daemon_role_arn          = module.iam.role_arn
  queue_name               = module.region.queue_name
  create_node_role         = false
  node_role_arn            = var.node_role_arn
  create_instance_profile  = false
  instance_profile_name    = var.instance_profile_name
  create_node_access_entry = false
  discovery_tags           = { "karpenter.sh/discovery" = var.cluster_name }
}

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
