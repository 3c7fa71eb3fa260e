# Everything that the module render makes, once for each option that gives rights in a cluster.

locals {
  options = {
    placement_hints  = true
    early_binding    = false
    forced_ends      = false
    capacity_buffers = true
    events           = true
    default_spread   = false
    bootstrap_tokens = false
    simulated_nodes  = false
  }

  # What the daemon does without any option, observed and managed; each option the other way round; all.
  cases = merge(
    { for mode in ["observe", "manage"] : mode => merge(local.options, { mode = mode }) },
    { for name, own in local.options : name => merge(local.options, { mode = "manage", (name) = !own }) },
    { tokens_observed = merge(local.options, { mode = "observe", bootstrap_tokens = true }) },
    { everything = merge({ for name in keys(local.options) : name => true }, { mode = "manage" }) },
    { lease = merge(local.options, { mode = "manage", lease_name = "autoscalers.of-prod" }) },
  )

  # One that is as the case says, one that is always observed.
  rights = {
    for name in keys(local.cases) : name => [
      for own in ["prod", "lab"] : {
        name            = own
        mode            = own == "lab" ? "observe" : local.cases[name].mode
        node_role_arns  = ["arn:aws:iam::123456789012:role/node-${own}"]
        eks_cluster_arn = "arn:aws:eks:eu-central-1:123456789012:cluster/${own}"
        zonal_shift     = own == "prod"
        adopt           = own == "prod"
      }
    ]
  }

  clusters = {
    prod = {
      region           = "eu-central-1"
      mode             = "manage"
      eks_name         = "prod-eks"
      endpoint         = "https://0123456789ABCDEF.gr7.eu-central-1.eks.amazonaws.com"
      ca               = "Cg=="
      service_cidr     = "10.100.0.0/16"
      queue            = "outrigger"
      zonal_shift      = true
      tags             = { Team = "platform", "cost-center" = "a+b=c" }
      instance_profile = "outrigger-node-prod"
      node_role        = "outrigger-node-prod"
    }
    spoke = {
      region           = "us-west-2"
      role_arn         = "arn:aws:iam::210987654321:role/outrigger"
      instance_profile = "outrigger-node-spoke"
    }
  }
}

module "render" {
  source   = "../render"
  for_each = local.cases

  installation             = "platform"
  region                   = "eu-central-1"
  account_id               = "123456789012"
  cluster_rights           = local.rights[each.key]
  queue_arns               = ["arn:aws:sqs:eu-central-1:123456789012:outrigger"]
  queue_key_arns           = ["arn:aws:kms:eu-central-1:123456789012:key/queue"]
  ssm_parameter_arns       = ["arn:aws:ssm:eu-central-1:123456789012:parameter/join/*"]
  ssm_parameter_key_arns   = ["arn:aws:kms:eu-central-1:123456789012:key/parameter"]
  manage_instance_profiles = true
  assume_role_arns         = ["arn:aws:iam::210987654321:role/outrigger"]
  trusted_role_arns        = ["arn:aws:iam::210987654321:role/outrigger"]
  clusters                 = local.clusters
  group                    = "autoscalers"

  mode             = each.value.mode
  lease_name       = try(each.value.lease_name, "outrigger")
  placement_hints  = each.value.placement_hints
  early_binding    = each.value.early_binding
  forced_ends      = each.value.forced_ends
  capacity_buffers = each.value.capacity_buffers
  events           = each.value.events
  default_spread   = each.value.default_spread
  bootstrap_tokens = each.value.bootstrap_tokens
  simulated_nodes  = each.value.simulated_nodes
}

# What the example of many clusters makes of them.
module "shared" {
  source = "../render"

  installation = "platform"
  ssm_path     = "/outrigger/platform/outputs"
  clusters = {
    for name, own in local.clusters : name => merge({ eks_name = name, queue = "outrigger", lease_name = "outrigger" }, own)
  }
}

output "cases" {
  value = {
    for name, own in module.render : name => merge(own, {
      with = merge({ lease_name = "outrigger" }, local.cases[name], {
        group    = "autoscalers"
        clusters = local.rights[name]
      })
    })
  }
}

output "configuration" {
  value = module.render["everything"].configuration
}

output "shared_configuration" {
  value = module.shared.configuration
}

# By the names of files, as `terraform output -json` would print each.
output "shared_outputs" {
  value = {
    for name, text in module.shared.ssm_parameters : "${basename(name)}.json" => jsonencode({
      clusters = { value = jsondecode(text).clusters }
    })
  }
}

output "user_data" {
  value = templatefile("../host/user_data.sh.tftpl", {
    package        = "https://packages.example/outrigger.rpm"
    package_sha256 = join("", [for _ in range(64) : "0"])
    is_remote      = true
    files          = { "terraform.hcl" = base64gzip(module.render["everything"].configuration) }
  })
}
