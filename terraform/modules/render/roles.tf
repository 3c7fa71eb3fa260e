# Trust policies: EC2 assumes the role of the host, and this role assumes the roles of other accounts.

locals {
  # EC2 is the only service whose name depends on the partition.
  ec2_service = var.partition == "aws-cn" ? "ec2.amazonaws.com.cn" : "ec2.amazonaws.com"

  host_trust = {
    Version = "2012-10-17"
    Statement = [{
      Sid       = "AllowInstances"
      Effect    = "Allow"
      Principal = { Service = [local.ec2_service] }
      Action    = ["sts:AssumeRole"]
    }]
  }

  spoke_trust = {
    Version = "2012-10-17"
    Statement = [merge({
      Sid       = "AllowDaemon"
      Effect    = "Allow"
      Principal = { AWS = var.trusted_role_arns }
      Action    = ["sts:AssumeRole"]
      }, var.external_id == null ? {} : {
      Condition = { StringEquals = { "sts:ExternalId" = var.external_id } }
    })]
  }

  assume = {
    Version = "2012-10-17"
    Statement = [{
      Sid      = "AllowRolesOfOtherAccounts"
      Effect   = "Allow"
      Action   = ["sts:AssumeRole"]
      Resource = var.assume_role_arns
    }]
  }
}
