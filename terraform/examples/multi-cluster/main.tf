# Many clusters of one account in several regions: one daemon, one queue for each region.

provider "aws" {
  region = var.region
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  regions   = toset([for own in values(var.clusters) : own.region])
  parameter = "/outrigger/${var.installation}/outputs"
  # By its name: what is in it depends on the role that may read it.
  parameter_arn = join(":", [
    "arn", data.aws_partition.current.partition, "ssm", var.region, data.aws_caller_identity.current.account_id,
    "parameter${local.parameter}",
  ])
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

  discovery_tags     = { "outrigger.dev/discovery/${each.key}" = "true" }
  tag_subnet_ids     = each.value.subnet_ids
  tag_security_group = true
}

module "iam" {
  source = "../../modules/iam"

  installation = var.installation
  regions = {
    for region in local.regions : region => {
      clusters           = [for name, own in var.clusters : module.cluster[name].rights if own.region == region]
      queue_arns         = [module.region[region].queue_arn]
      queue_key_arns     = module.region[region].queue_key_arns
      ssm_parameter_arns = region == var.region ? [local.parameter_arn] : []
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

# Where `data "terraform_output"` finds the same: with it, one cluster more is no other host.
resource "aws_ssm_parameter" "clusters" {
  #checkov:skip=CKV2_AWS_34:what is in it is public
  name        = local.parameter
  description = "Clusters of Outrigger's installation ${var.installation}"
  type        = "String"
  tier        = "Intelligent-Tiering"
  value       = module.configuration.terraform_output

  lifecycle {
    precondition {
      condition     = length(module.configuration.terraform_output) <= 8192
      error_message = "A parameter has 8 KiB, which so many clusters do not fit in: use a file."
    }
  }
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
