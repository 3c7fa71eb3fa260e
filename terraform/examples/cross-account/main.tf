# The host is in one account, and the cluster in another account. The daemon assumes a role of the cluster's
# account for EC2, the queue and the cluster's API.

provider "aws" {
  region = var.region
}

provider "aws" {
  alias  = "spoke"
  region = var.region

  assume_role {
    role_arn = var.spoke_admin_role_arn
  }
}

module "iam" {
  source = "../../modules/iam"

  installation     = var.installation
  assume_role_arns = [module.spoke_iam.role_arn]
}

module "region" {
  source    = "../../modules/region"
  providers = { aws = aws.spoke }

  installation = var.installation
}

module "cluster" {
  source    = "../../modules/cluster"
  providers = { aws = aws.spoke }

  installation    = var.installation
  cluster_name    = var.cluster_name
  mode            = "manage"
  daemon_role_arn = module.spoke_iam.role_arn
  assume_role     = true
  queue_name      = module.region.queue_name

  discovery_tags     = { "outrigger.dev/discovery/${var.cluster_name}" = "true" }
  tag_subnet_ids     = var.node_subnet_ids
  tag_security_group = true
}

module "spoke_iam" {
  source    = "../../modules/iam"
  providers = { aws = aws.spoke }

  installation      = var.installation
  name              = "outrigger-spoke"
  trusted_role_arns = [module.iam.role_arn]
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
