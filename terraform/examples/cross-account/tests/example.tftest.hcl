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

mock_provider "aws" {
  alias = "spoke"

  mock_data "aws_caller_identity" {
    defaults = { account_id = "210987654321" }
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
      arn                       = "arn:aws:eks:eu-central-1:210987654321:cluster/prod"
      endpoint                  = "https://prod.example"
      access_config             = [{ authentication_mode = "API" }]
      certificate_authority     = [{ data = "Cg==" }]
      kubernetes_network_config = [{ service_ipv4_cidr = "10.100.0.0/16" }]
      vpc_config                = [{ vpc_id = "vpc-1", cluster_security_group_id = "sg-1" }]
    }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::210987654321:role/made" }
  }
  mock_resource "aws_iam_policy" {
    defaults = { arn = "arn:aws:iam::210987654321:policy/made" }
  }
  mock_resource "aws_sqs_queue" {
    defaults = { arn = "arn:aws:sqs:eu-central-1:210987654321:outrigger" }
  }
}

variables {
  cluster_name         = "prod"
  spoke_admin_role_arn = "arn:aws:iam::210987654321:role/admin"
  node_subnet_ids      = ["subnet-3"]
  vpc_id               = "vpc-1"
  subnet_ids           = ["subnet-1", "subnet-2"]
  package              = "https://packages.example/outrigger.rpm"
  package_sha256       = "0000000000000000000000000000000000000000000000000000000000000000"
}

run "whole" {
  command = apply

  assert {
    condition     = output.clusters["prod"].role_arn == "arn:aws:iam::210987654321:role/made"
    error_message = "The daemon assumes the role in the account of the cluster."
  }
}
