# The part of the configuration that only Terraform knows, as HCL in the format of `outrigger fmt`:
# `local.clusters` with the values of each cluster, for node classes, and the `cluster` blocks.
# `data "terraform_output"` returns the same values as `clusters`, from parameters or a file.

locals {
  known = {
    for name, own in var.clusters : name => {
      for key, value in {
        adopt            = own.adopt
        ca               = own.ca
        disable_dry_run  = own.mode == "observe"
        eks_name         = own.eks_name
        endpoint         = own.endpoint
        external_id      = own.external_id
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

  # The number of parameters is fixed, and a hash of the cluster name selects the parameter. A new cluster
  # thus changes one parameter, and neither `configuration` nor the other parameters.
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
          # In observe mode only `outrigger doctor` sends dry runs for node classes. They would fail,
          # because the role may not launch instances for the cluster.
          disable_dry_run = own.mode == "observe" ? true : null
          external_id     = own.external_id
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
