# Creates one cluster in the VPC of the host. Its API server has only a private endpoint.

provider "aws" {
  region = var.region
}

data "aws_partition" "current" {}

data "aws_iam_policy_document" "cluster" {
  statement {
    actions = ["sts:AssumeRole", "sts:TagSession"]

    principals {
      type        = "Service"
      identifiers = ["eks.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "cluster" {
  name               = "${var.cluster_name}-cluster"
  assume_role_policy = data.aws_iam_policy_document.cluster.json
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/AmazonEKSClusterPolicy"
}

resource "aws_eks_cluster" "this" {
  #checkov:skip=CKV_AWS_58:EKS encrypts secrets from Kubernetes 1.28 on
  name                      = var.cluster_name
  role_arn                  = aws_iam_role.cluster.arn
  version                   = var.kubernetes_version
  enabled_cluster_log_types = ["api", "audit", "authenticator", "controllerManager", "scheduler"]

  access_config {
    authentication_mode = "API"
    # The identity that applies this becomes the administrator of the cluster, and can apply `manifests`.
    bootstrap_cluster_creator_admin_permissions = true
  }

  vpc_config {
    subnet_ids              = var.subnet_ids
    endpoint_private_access = true
    endpoint_public_access  = false
  }

  depends_on = [aws_iam_role_policy_attachment.cluster]
}

module "region" {
  source = "../../modules/region"

  installation = var.installation
}

# The ID equals the name, but is known only after creation. The module can then read the cluster.
module "cluster" {
  source = "../../modules/cluster"

  installation    = var.installation
  cluster_name    = aws_eks_cluster.this.id
  mode            = "manage"
  daemon_role_arn = module.iam.role_arn
  queue_name      = module.region.queue_name

  discovery_tags     = { "outrigger.dev/discovery/${var.cluster_name}" = "true" }
  tag_subnet_ids     = var.subnet_ids
  tag_security_group = true
}

module "iam" {
  source = "../../modules/iam"

  installation = var.installation
  regions = {
    (var.region) = {
      clusters       = [module.cluster.rights]
      queue_arns     = [module.region.queue_arn]
      queue_key_arns = module.region.queue_key_arns
    }
  }
}

locals {
  clusters = { (var.cluster_name) = module.cluster.outrigger }
}

module "configuration" {
  source = "../../modules/render"

  installation = var.installation
  clusters     = local.clusters
}

module "host" {
  source = "../../modules/host"

  vpc_id                = var.vpc_id
  subnet_ids            = var.subnet_ids
  instance_profile_name = module.iam.instance_profile_name
  package               = var.package
  package_sha256        = var.package_sha256
  configuration = {
    "terraform.hcl" = module.configuration.configuration
    "pools.hcl"     = file("${path.module}/pools.hcl")
  }
  cluster_security_group_ids = { (var.cluster_name) = module.cluster.cluster_security_group_id }
}
