output "name" {
  description = "Name of the cluster in Outrigger."
  value       = local.name
}

output "outrigger" {
  description = "Configuration of the cluster: an element of `clusters` of the module render."
  value = {
    region   = data.aws_region.current.region
    mode     = var.mode
    eks_name = var.cluster_name
    endpoint = data.aws_eks_cluster.this.endpoint
    ca       = data.aws_eks_cluster.this.certificate_authority[0].data
    service_cidr = try(coalesce(
      data.aws_eks_cluster.this.kubernetes_network_config[0].service_ipv4_cidr,
      data.aws_eks_cluster.this.kubernetes_network_config[0].service_ipv6_cidr,
    ), null)
    role_arn         = var.assume_role ? var.daemon_role_arn : null
    external_id      = var.assume_role ? var.external_id : null
    queue            = var.queue_name
    lease_name       = var.lease_name
    zonal_shift      = var.zonal_shift
    adopt            = var.adopt
    tags             = var.tags
    instance_profile = local.instance_profile
    node_role        = local.node_role
  }

  precondition {
    condition     = length(var.discovery_tags) > 0 || (length(var.tag_subnet_ids) == 0 && !var.tag_security_group)
    error_message = "tag_subnet_ids and tag_security_group require discovery_tags."
  }
  precondition {
    condition     = var.external_id == null || var.assume_role
    error_message = "external_id requires assume_role."
  }
}

output "rights" {
  description = "Permissions of the daemon's role for the cluster: an element of `clusters` of a region of the module iam."
  value = {
    name            = local.name
    mode            = var.mode
    node_role_arns  = [local.node_role_arn]
    eks_cluster_arn = data.aws_eks_cluster.this.arn
    zonal_shift     = var.zonal_shift
    adopt           = coalesce(var.adopt, false)
  }

  precondition {
    condition     = var.create_node_role || var.node_role_arn != null
    error_message = "A node role is required. Set node_role_arn or create_node_role."
  }
}

output "cluster_arn" {
  description = "ARN of the cluster."
  value       = data.aws_eks_cluster.this.arn
}

output "cluster_security_group_id" {
  description = "Security group of the cluster's API endpoint. It must allow inbound traffic from the host."
  value       = data.aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
}

output "node_role_arn" {
  description = "ARN of the role of the nodes."
  value       = local.node_role_arn
}

output "instance_profile_name" {
  description = "Instance profile of the nodes, for node classes."
  value       = local.instance_profile
}

output "manifests" {
  description = "Manifests that an administrator applies to the cluster, as YAML: `terraform output -raw … | kubectl apply -f -`."
  value       = join("---\n", [module.render.rbac, module.render.flow_schemas])
}
