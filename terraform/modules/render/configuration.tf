# The part of the configuration that only Terraform knows, as HCL in the form that `outrigger fmt`
# gives: what is known of each cluster as `local.clusters`, for node classes, and `cluster` blocks.
# `data "terraform_output"` gives the same as `clusters`, from parameters or a file.

locals {
  known = {
    for name, own in var.clusters : name => {
      for key, value in {
        adopt            = own.adopt
        ca               = own.ca
        disable_dry_run  = own.mode == "observe"
        eks_name         = own.eks_name
        endpoint         = own.endpoint
        instance_profile = own.instance_profile
        lease_name       = own.lease_name
        mode             = own.mode
        node_role        = own.node_role
        queue            = own.queue
        region           = own.region
        role_arn         = own.role_arn
        service_cidr     = own.service_cidr
        tags             = own.tags
        zonal_shift      = own.zonal_shift
      } : key => value if value != null
    }
  }

  # As many in any case, each with the clusters whose names say so: one more changes what one of them
  # holds, and neither `configuration` nor what the others hold.
  parts = [for digit in range(16) : format("%x", digit)]
  ssm_parameters = {
    for part in local.parts : "${var.ssm_path}/${part}" => jsonencode({
      clusters = { for name, own in local.known : name => own if substr(md5(name), 0, 1) == part }
    }) if var.ssm_path != null
  }

  blocks = {
    for name, own in var.clusters : name => {
      arguments = {
        for key, value in {
          adopt = own.adopt
          # Only `outrigger doctor` would try the node classes of a cluster that is observed, and fail:
          # nobody may launch anything for it.
          disable_dry_run = own.mode == "observe" ? true : null
          mode            = own.mode
          region          = own.region
          role_arn        = own.role_arn
          zonal_shift     = own.zonal_shift ? true : null
        } : key => value if value != null
      }
      tags = own.tags
      inner = {
        for block, arguments in {
          eks = own.kubeconfig != null ? null : {
            ca_data      = own.ca
            endpoint     = own.endpoint
            name         = own.eks_name
            service_cidr = own.service_cidr
          }
          interruption = own.queue == null ? null : { queue = own.queue }
          kubeconfig   = own.kubeconfig
          leader_election = coalesce(own.lease_name, "outrigger") == "outrigger" ? null : {
            lease = "kube-system/${own.lease_name}"
          }
        } : block => { for key, value in arguments : key => value if value != null } if arguments != null
      }
    } if var.cluster_blocks && var.ssm_path == null
  }

  configuration = templatefile("${path.module}/configuration.hcl.tftpl", {
    installation = var.installation
    known        = { for name, own in local.known : name => own if var.ssm_path == null }
    blocks       = local.blocks
    parts        = var.ssm_path == null ? [] : local.parts
    ssm_path     = var.ssm_path
  })
}
