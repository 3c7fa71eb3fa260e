# Resources for one EKS cluster: the node role, and access entries for the nodes and the daemon.

data "aws_partition" "current" {}

data "aws_eks_cluster" "this" {
  region = var.region
  name   = var.cluster_name
}

data "aws_region" "current" {
  region = var.region
}

locals {
  name      = coalesce(var.name, var.cluster_name)
  node_name = coalesce(var.node_role_name, "outrigger-node-${var.cluster_name}")
  policies  = "arn:${data.aws_partition.current.partition}:iam::aws:policy"

  node_role_arn = var.create_node_role ? one(aws_iam_role.node[*].arn) : var.node_role_arn
  # The name of the role. For an existing role it is derived from the ARN.
  node_role = var.create_node_role ? one(aws_iam_role.node[*].name) : try(one(regex("([^/]+)$", var.node_role_arn)), null)
  instance_profile = (
    var.create_instance_profile ? one(aws_iam_instance_profile.node[*].name) : var.instance_profile_name
  )

  ipv6 = try(data.aws_eks_cluster.this.kubernetes_network_config[0].ip_family, "ipv4") == "ipv6"

  # Only these modes support access entries, which replace the ConfigMap aws-auth.
  entries = contains(["API", "API_AND_CONFIG_MAP"], try(data.aws_eks_cluster.this.access_config[0].authentication_mode, ""))
}

module "render" {
  source = "../render"

  installation     = var.installation
  partition        = data.aws_partition.current.partition
  mode             = var.mode
  lease_name       = var.lease_name
  group            = var.group
  user             = var.user
  placement_hints  = var.placement_hints
  early_binding    = var.early_binding
  forced_ends      = var.forced_ends
  capacity_buffers = var.capacity_buffers
  events           = var.events
  default_spread   = var.default_spread
}

resource "aws_iam_role" "node" {
  count = var.create_node_role ? 1 : 0

  name                 = local.node_name
  path                 = var.path
  description          = "Nodes that Outrigger launches for ${var.cluster_name}"
  assume_role_policy   = module.render.host_trust
  permissions_boundary = var.permissions_boundary
  tags                 = var.tags

  lifecycle {
    precondition {
      condition     = length(local.node_name) <= 64
      error_message = "The name of the node role exceeds 64 characters. Set node_role_name."
    }
  }
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each = var.create_node_role ? merge(
    {
      worker = "${local.policies}/AmazonEKSWorkerNodePolicy"
      images = "${local.policies}/AmazonEC2ContainerRegistryPullOnly"
    },
    var.attach_cni_policy && !local.ipv6 ? { cni = "${local.policies}/AmazonEKS_CNI_Policy" } : {},
    var.node_session_manager ? { session_manager = "${local.policies}/AmazonSSMManagedInstanceCore" } : {},
    var.node_role_policies,
  ) : {}

  role       = one(aws_iam_role.node[*].name)
  policy_arn = each.value
}

# AWS has no managed policy for the VPC CNI of IPv6 clusters. The EKS documentation names these actions.
resource "aws_iam_role_policy" "cni_ipv6" {
  count = var.create_node_role && var.attach_cni_policy && local.ipv6 ? 1 : 0

  name = "cni-ipv6"
  role = one(aws_iam_role.node[*].name)
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect = "Allow"
        Action = [
          "ec2:DescribeInstances",
          "ec2:DescribeInstanceTypes",
          "ec2:DescribeNetworkInterfaces",
          "ec2:DescribeTags",
        ]
        Resource = ["*"]
      },
      {
        Effect   = "Allow"
        Action   = ["ec2:AssignIpv6Addresses", "ec2:CreateTags"]
        Resource = ["arn:${data.aws_partition.current.partition}:ec2:*:*:network-interface/*"]
      },
    ]
  })
}

# Terraform creates the profile, so the daemon needs no permissions to create one.
resource "aws_iam_instance_profile" "node" {
  count = var.create_instance_profile ? 1 : 0

  name = local.node_name
  path = var.path
  role = local.node_role
  tags = var.tags
}

resource "aws_eks_access_entry" "node" {
  count = var.create_node_access_entry ? 1 : 0

  region        = var.region
  cluster_name  = var.cluster_name
  principal_arn = local.node_role_arn
  type          = var.node_access_entry_type
  tags          = var.tags

  lifecycle {
    precondition {
      condition     = local.entries
      error_message = "The cluster does not support access entries. Set its authentication mode to API or API_AND_CONFIG_MAP."
    }
  }
}

# FlowSchemas and audit logs use the user name. The user has only the permissions of its group.
resource "aws_eks_access_entry" "daemon" {
  count = var.create_daemon_access_entry ? 1 : 0

  region            = var.region
  cluster_name      = var.cluster_name
  principal_arn     = var.daemon_role_arn
  type              = "STANDARD"
  user_name         = var.user
  kubernetes_groups = [var.group]
  tags              = var.tags

  lifecycle {
    precondition {
      condition     = local.entries
      error_message = "The cluster does not support access entries. Set its authentication mode to API or API_AND_CONFIG_MAP."
    }
  }
}

# Discovery tags of node classes. An existing tag with a different value is overwritten.
resource "aws_ec2_tag" "subnet" {
  for_each = {
    for own in setproduct(var.tag_subnet_ids, keys(var.discovery_tags)) : "${own[0]} ${own[1]}" => { id = own[0], key = own[1] }
  }

  region      = var.region
  resource_id = each.value.id
  key         = each.value.key
  value       = var.discovery_tags[each.value.key]
}

resource "aws_ec2_tag" "security_group" {
  for_each = var.tag_security_group ? var.discovery_tags : {}

  region      = var.region
  resource_id = data.aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
  key         = each.key
  value       = each.value
}

# Outside the check blocks: data sources in a check wait for all resources, and a resource that depends on
# this module would wait forever.
data "aws_subnets" "discovered" {
  count = length(var.discovery_tags) > 0 ? 1 : 0

  region = var.region
  tags   = var.discovery_tags

  filter {
    name   = "vpc-id"
    values = [data.aws_eks_cluster.this.vpc_config[0].vpc_id]
  }

  depends_on = [aws_ec2_tag.subnet]
}

data "aws_security_groups" "discovered" {
  count = length(var.discovery_tags) > 0 ? 1 : 0

  region = var.region
  tags   = var.discovery_tags

  filter {
    name   = "vpc-id"
    values = [data.aws_eks_cluster.this.vpc_config[0].vpc_id]
  }

  depends_on = [aws_ec2_tag.security_group]
}

check "subnets" {
  assert {
    condition     = alltrue([for own in data.aws_subnets.discovered : length(own.ids) > 0])
    error_message = "No subnet of the cluster's VPC has the discovery tags of the node classes."
  }
}

check "security_groups" {
  assert {
    condition     = alltrue([for own in data.aws_security_groups.discovered : length(own.ids) > 0])
    error_message = "No security group of the cluster's VPC has the discovery tags of the node classes."
  }
}
