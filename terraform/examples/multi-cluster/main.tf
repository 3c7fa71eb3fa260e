# Many clusters of one account in several regions: one daemon, one queue for each region.

provider "aws" {
  region = var.region
}

locals {
  regions = toset([for own in values(var.clusters) : own.region])
}

module "region" {
  source   = "../../modules/region"
  for_each = local.regions

  installation = var.installation
  region       = each.key
}

module "cluster" {
  source   = "../../modules/cluster"
  for_each = var.clusters

  installation    = var.installation
  cluster_name    = each.key
  region          = each.value.region
  mode            = each.value.mode
  daemon_role_arn = module.iam.role_arn
  queue_name      = module.region[each.value.region].queue_name
}

module "iam" {
  source = "../../modules/iam"

  installation = var.installation
  regions = {
    for region in local.regions : region => {
      node_role_arns   = [for name, own in var.clusters : module.cluster[name].node_role_arn if own.region == region]
      queue_arns       = [module.region[region].queue_arn]
      eks_cluster_arns = [for name, own in var.clusters : module.cluster[name].cluster_arn if own.region == region]
    }
  }
}

locals {
  clusters = { for name, own in module.cluster : name => own.outrigger }
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
