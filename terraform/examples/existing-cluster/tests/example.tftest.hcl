# Requires Terraform 1.7 and the provider schema, but no AWS account.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
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
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/made" }
  }
  mock_resource "aws_iam_policy" {
    defaults = { arn = "arn:aws:iam::123456789012:policy/made" }
  }
  mock_resource "aws_sqs_queue" {
    defaults = { arn = "arn:aws:sqs:eu-central-1:123456789012:outrigger" }
  }
}

variables {
  cluster_name          = "prod"
  node_role_arn         = "arn:aws:iam::123456789012:role/node"
  instance_profile_name = "node"
  vpc_id                = "vpc-1"
  subnet_ids            = ["subnet-1", "subnet-2"]
  package               = "https://packages.example/outrigger.rpm"
  package_sha256        = "0000000000000000000000000000000000000000000000000000000000000000"
}

run "observed" {
  command = apply

  assert {
    condition     = output.clusters["prod"].mode == "observe" && length(keys(output.clusters)) == 1
    error_message = "The cluster is in observe mode."
  }
}

run "managed" {
  command = apply

  variables {
    mode  = "manage"
    adopt = true
  }

  assert {
    condition     = output.clusters["prod"].instance_profile == "node"
    error_message = "The existing resources are used."
  }
  assert {
    condition     = output.clusters["prod"].adopt
    error_message = "Karpenter's nodes are adopted."
  }
}
