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
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-1" }
  }
  mock_resource "aws_sqs_queue" {
    defaults = { arn = "arn:aws:sqs:eu-central-1:123456789012:outrigger" }
  }
}

variables {
  # No cluster in the region of the host: its parameters still exist.
  region = "eu-west-1"
  clusters = {
    prod-eu = { region = "eu-central-1", mode = "manage", subnet_ids = ["subnet-1"] }
    prod-us = { region = "us-west-2", mode = "manage", adopt = true, subnet_ids = ["subnet-1"] }
    lab     = { region = "eu-central-1", subnet_ids = ["subnet-1"] }
  }
  vpc_id         = "vpc-1"
  subnet_ids     = ["subnet-1", "subnet-2"]
  package        = "https://packages.example/outrigger.rpm"
  package_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
}

run "whole" {
  command = apply

  assert {
    condition     = { for name, own in output.clusters : name => own.mode } == { prod-eu = "manage", prod-us = "manage", lab = "observe" }
    error_message = "Each cluster has its mode."
  }
  assert {
    condition     = [for name, own in output.clusters : name if try(own.adopt == true, false)] == ["prod-us"]
    error_message = "Nodes are adopted only in clusters with adopt."
  }
  assert {
    condition = jsonencode(merge([
      for own in values(aws_ssm_parameter.clusters) : jsondecode(own.value).clusters
    ]...)) == jsonencode(output.clusters)
    error_message = "The parameters have the values of each cluster."
  }
  assert {
    condition     = alltrue([for own in values(output.clusters) : !contains(keys(own), "ca")])
    error_message = "The parameters omit values that the daemon reads from EKS."
  }
  assert {
    condition = alltrue([
      for name in keys(aws_ssm_parameter.clusters) : strcontains(module.configuration.configuration, "\"${name}\"")
    ])
    error_message = "The configuration reads all parameters."
  }
}

run "many" {
  command = apply

  variables {
    clusters = {
      for n in range(77) : "prod-${n}" => { region = "eu-test-${n % 7 + 1}", mode = "manage", subnet_ids = ["subnet-1"] }
    }
  }

  assert {
    condition     = !strcontains(module.configuration.configuration, "prod-")
    error_message = "Additional clusters do not change the host."
  }
}
