# Many clusters of one account in several regions: one daemon, one queue for each region.

provider "aws" {
  region = var.region
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  # Always includes the region of the host, because the role reads its parameters there.
  regions  = toset(concat([var.region], [for own in values(var.clusters) : own.region]))
  ssm_path = "/outrigger/${var.installation}/outputs"
  # ARNs built from names: the values of the parameters depend on the role, so references would be a cycle.
  parameters_arn = join(":", [
    "arn", data.aws_partition.current.partition, "ssm", var.region, data.aws_caller_identity.current.account_id,
    "parameter${local.ssm_path}/*",
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
  adopt           = each.value.adopt
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
      ssm_parameter_arns = region == var.region ? [local.parameters_arn] : []
    }
  }
}

locals {
  # Omits long values that the daemon reads from EKS, so that a parameter has room for more clusters.
  clusters = {
    for name, own in module.cluster : name => merge(own.outrigger, { ca = null, endpoint = null, service_cidr = null })
  }
}

module "configuration" {
  source = "../../modules/render"

  installation = var.installation
  clusters     = local.clusters
  ssm_path     = local.ssm_path
}

# The configuration of the host reads the clusters from these parameters. A new cluster does not replace
# the host.
resource "aws_ssm_parameter" "clusters" {
  #checkov:skip=CKV2_AWS_34:the values are public
  for_each = module.configuration.ssm_parameters

  name        = each.key
  description = "Clusters of the Outrigger installation ${var.installation}"
  type        = "String"
  tier        = "Intelligent-Tiering"
  value       = each.value
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
    "clusters.hcl"  = file("${path.module}/clusters.hcl")
    "pools.hcl"     = file("${path.module}/pools.hcl")
  }
}
