# Needs Terraform 1.7 and the provider's schema, but no account.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
}

variables {
  installation = "platform"
  regions = {
    eu-central-1 = { node_role_arns = ["arn:aws:iam::123456789012:role/node"] }
  }
}

run "host" {
  command = plan

  assert {
    condition     = length(aws_iam_instance_profile.this) == 1 && length(aws_iam_role_policy.assume) == 0
    error_message = "The host has an instance profile, and assumes nothing."
  }
}

run "spoke" {
  command = plan

  variables {
    trusted_role_arns = ["arn:aws:iam::210987654321:role/outrigger"]
  }

  assert {
    condition = (
      length(aws_iam_instance_profile.this) == 0 &&
      length(aws_iam_role_policy_attachment.session_manager) == 0
    )
    error_message = "A role that is assumed is no role of a host."
  }
}

run "no_nodes" {
  command = plan

  variables {
    regions = { eu-central-1 = { node_role_arns = [] } }
  }

  expect_failures = [var.regions]
}
