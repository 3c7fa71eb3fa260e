# Requires Terraform 1.7 and the provider schema, but no AWS account.

mock_provider "aws" {
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_region" {
    defaults = { region = "eu-central-1" }
  }
  mock_data "aws_subnets" {
    defaults = { ids = ["subnet-1"] }
  }
  mock_data "aws_security_groups" {
    defaults = { ids = ["sg-1"] }
  }
  mock_data "aws_eks_cluster" {
    defaults = {
      arn                       = "arn:aws:eks:eu-central-1:123456789012:cluster/prod"
      endpoint                  = "https://prod.example"
      access_config             = [{ authentication_mode = "API" }]
      certificate_authority     = [{ data = "Cg==" }]
      kubernetes_network_config = [{ service_ipv4_cidr = "10.100.0.0/16" }]
      vpc_config                = [{ vpc_id = "vpc-1", cluster_security_group_id = "sg-1" }]
    }
  }
}

variables {
  installation    = "platform"
  cluster_name    = "prod"
  daemon_role_arn = "arn:aws:iam::123456789012:role/outrigger"
}

run "made" {
  command = plan

  assert {
    condition = (
      aws_eks_access_entry.daemon[0].user_name == "outrigger" &&
      aws_eks_access_entry.daemon[0].kubernetes_groups == toset(["outrigger"])
    )
    error_message = "The daemon has one user name and one group."
  }
  assert {
    condition     = toset(keys(aws_iam_role_policy_attachment.node)) == toset(["worker", "images", "cni"])
    error_message = "The node role has the required policies."
  }
  assert {
    condition     = output.outrigger.role_arn == null && output.outrigger.mode == "observe"
    error_message = "The default mode is observe."
  }
}

run "ipv6" {
  command = plan

  override_data {
    target = data.aws_eks_cluster.this
    values = {
      access_config             = [{ authentication_mode = "API" }]
      kubernetes_network_config = [{ ip_family = "ipv6", service_ipv6_cidr = "fd00:ec2::/108" }]
    }
  }

  assert {
    condition = (
      toset(keys(aws_iam_role_policy_attachment.node)) == toset(["worker", "images"]) &&
      length(aws_iam_role_policy.cni_ipv6) == 1
    )
    error_message = "The nodes of an IPv6 cluster can assign IPv6 addresses."
  }
}

run "session_manager" {
  command = plan

  variables {
    node_session_manager = true
  }

  assert {
    condition = endswith(
      aws_iam_role_policy_attachment.node["session_manager"].policy_arn, "/AmazonSSMManagedInstanceCore",
    )
    error_message = "Systems Manager can manage the nodes."
  }
}

run "assumed" {
  command = plan

  variables {
    assume_role = true
    external_id = "acme"
  }

  assert {
    condition     = output.outrigger.role_arn == var.daemon_role_arn && output.outrigger.external_id == "acme"
    error_message = "The daemon assumes the role with the external ID."
  }
}

run "there" {
  command = plan

  variables {
    create_node_role         = false
    node_role_arn            = "arn:aws:iam::123456789012:role/path/node"
    create_instance_profile  = false
    instance_profile_name    = "node"
    create_node_access_entry = false
  }

  assert {
    condition     = output.outrigger.node_role == "node" && length(aws_eks_access_entry.node) == 0
    error_message = "Existing resources are used, and none are created."
  }
}

run "rights" {
  command = plan

  assert {
    condition     = output.rights.mode == "observe" && output.rights.name == "prod"
    error_message = "The AWS permissions match the mode."
  }
}

run "tagged" {
  command = apply

  variables {
    discovery_tags     = { "outrigger.dev/discovery/prod" = "true" }
    tag_subnet_ids     = ["subnet-1", "subnet-2"]
    tag_security_group = true
  }

  assert {
    condition = (
      toset([for own in values(aws_ec2_tag.subnet) : own.resource_id]) == toset(["subnet-1", "subnet-2"]) &&
      aws_ec2_tag.security_group["outrigger.dev/discovery/prod"].resource_id == "sg-1"
    )
    error_message = "The subnets and the security group have the discovery tags."
  }
}

run "nothing_found" {
  command = plan

  variables {
    discovery_tags = { "karpenter.sh/discovery" = "prod" }
  }

  override_data {
    target = data.aws_subnets.discovered
    values = { ids = [] }
  }
  override_data {
    target = data.aws_security_groups.discovered
    values = { ids = [] }
  }

  expect_failures = [check.subnets, check.security_groups]
}

run "no_tags" {
  command = plan

  variables {
    tag_security_group = true
  }

  expect_failures = [output.outrigger]
}

run "no_role" {
  command = plan

  variables {
    create_node_role         = false
    create_instance_profile  = false
    create_node_access_entry = false
  }

  expect_failures = [output.rights]
}

run "unknown_mode" {
  command = plan

  variables {
    mode = "own"
  }

  expect_failures = [var.mode]
}

run "long_name" {
  command = plan

  variables {
    cluster_name = join("", [for _ in range(60) : "c"])
  }

  expect_failures = [aws_iam_role.node]
}

run "no_cluster" {
  command = plan

  variables {
    cluster_name = "prod eu"
  }

  expect_failures = [var.cluster_name]
}

run "any_role" {
  command = plan

  variables {
    daemon_role_arn = "arn:aws:iam::123456789012:root"
  }

  expect_failures = [var.daemon_role_arn]
}
