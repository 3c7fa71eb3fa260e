# Role of the daemon in one account: the role of its host, or a role that it assumes from another account.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  on_host = length(var.trusted_role_arns) == 0
}

# One policy for each region, because a managed policy has room for one region only.
module "render" {
  source   = "../render"
  for_each = var.regions

  installation             = var.installation
  partition                = data.aws_partition.current.partition
  region                   = each.key
  account_id               = data.aws_caller_identity.current.account_id
  cluster_rights           = each.value.clusters
  queue_arns               = each.value.queue_arns
  queue_key_arns           = each.value.queue_key_arns
  ssm_parameter_arns       = each.value.ssm_parameter_arns
  ssm_parameter_key_arns   = each.value.ssm_parameter_key_arns
  manage_instance_profiles = var.manage_instance_profiles
}

module "trust" {
  source = "../render"

  installation      = var.installation
  partition         = data.aws_partition.current.partition
  assume_role_arns  = var.assume_role_arns
  trusted_role_arns = var.trusted_role_arns
  external_id       = var.external_id
}

resource "aws_iam_role" "this" {
  name                 = var.name
  path                 = var.path
  description          = "Outrigger, installation ${var.installation}"
  assume_role_policy   = local.on_host ? module.trust.host_trust : module.trust.spoke_trust
  permissions_boundary = var.permissions_boundary
  tags                 = var.tags

  lifecycle {
    precondition {
      condition     = var.external_id == null || !local.on_host
      error_message = "external_id requires trusted_role_arns: the role of a host is not assumed from another account."
    }
  }
}

resource "aws_iam_policy" "region" {
  for_each = module.render

  name        = "${var.name}-${each.key}"
  path        = var.path
  description = "What Outrigger may do in ${each.key}"
  policy      = each.value.policy
  tags        = var.tags
}

resource "aws_iam_role_policy_attachment" "region" {
  for_each = aws_iam_policy.region

  role       = aws_iam_role.this.name
  policy_arn = each.value.arn
}

resource "aws_iam_role_policy" "keys" {
  for_each = {
    for region, own in var.regions : region => module.render[region].decrypt_policy
    if length(concat(own.queue_key_arns, own.ssm_parameter_key_arns)) > 0
  }

  name   = "keys-${each.key}"
  role   = aws_iam_role.this.name
  policy = each.value
}

resource "aws_iam_role_policy" "assume" {
  count = length(var.assume_role_arns) > 0 ? 1 : 0

  name   = "assume"
  role   = aws_iam_role.this.name
  policy = module.trust.assume_policy
}

# The host accepts no inbound connections; administrators connect through Session Manager.
resource "aws_iam_role_policy_attachment" "session_manager" {
  count = local.on_host && var.session_manager ? 1 : 0

  role       = aws_iam_role.this.name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "this" {
  count = local.on_host ? 1 : 0

  name = var.name
  path = var.path
  role = aws_iam_role.this.name
  tags = var.tags
}
