# The part of the configuration that only Terraform knows, as HCL in the form that `outrigger fmt`
# gives: what is known of each cluster as `local.clusters`, for node classes, and `cluster` blocks.
# `data "terraform_output"` gives the same as `clusters`, from a parameter or a file.

locals {
  known = {
    for name, own in var.clusters : name => {
      for key, value in {
        ca               = own.ca
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
      } : key => value if value != null
    }
  }

  blocks = {
    for name, own in var.clusters : name => {
      arguments = {
        for key, value in {
          adopt = own.adopt
          # A node class is tried by what makes launch templates, which nobody may who only observes.
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
    } if var.cluster_blocks
  }

  configuration = templatefile("${path.module}/configuration.hcl.tftpl", {
    installation = var.installation
    known        = local.known
    blocks       = local.blocks
  })
}
