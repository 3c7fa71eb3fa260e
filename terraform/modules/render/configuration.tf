# The part of the configuration that only Terraform knows, as HCL in the form that `outrigger fmt`
# gives: what is known of each cluster as `local.clusters`, for node classes, and `cluster` blocks.

locals {
  known = {
    for name, own in var.clusters : name => {
      for key, value in {
        ca_data          = own.ca_data
        eks_name         = own.eks_name
        endpoint         = own.endpoint
        instance_profile = own.instance_profile
        mode             = own.mode
        queue            = own.queue
        region           = own.region
        role             = own.role
        role_arn         = own.role_arn
        service_cidr     = own.service_cidr
      } : key => value if value != null
    }
  }

  blocks = {
    for name, own in var.clusters : name => {
      arguments = {
        for key, value in { mode = own.mode, region = own.region, role_arn = own.role_arn } :
        key => value if value != null
      }
      tags = own.tags
      inner = {
        for block, arguments in {
          eks = own.kubeconfig != null ? null : {
            ca_data      = own.ca_data
            endpoint     = own.endpoint
            name         = own.eks_name
            service_cidr = own.service_cidr
          }
          interruption = own.queue == null ? null : { queue = own.queue }
          kubeconfig   = own.kubeconfig
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
