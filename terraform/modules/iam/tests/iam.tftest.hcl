# Requires Terraform 1.7 and the provider schema, but no AWS account.

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
    eu-central-1 = {
      clusters = [
        { name = "prod", mode = "manage", node_role_arns = ["arn:aws:iam::123456789012:role/prod"] },
        { name = "lab", node_role_arns = ["arn:aws:iam::123456789012:role/lab"] },
      ]
    }
    us-west-2 = { clusters = [{ name = "far", node_role_arns = ["arn:aws:iam::123456789012:role/far"] }] }
  }
}

run "host" {
  command = plan

  assert {
    condition     = length(aws_iam_instance_profile.this) == 1 && length(aws_iam_role_policy.assume) == 0
    error_message = "The host has an instance profile and no assume policy."
  }
}

run "managed_alone" {
  command = plan

  assert {
    condition = (
      strcontains(aws_iam_policy.region["eu-central-1"].policy, "role/prod") &&
      !strcontains(aws_iam_policy.region["eu-central-1"].policy, "role/lab")
    )
    error_message = "Only node roles of managed clusters can be passed to instances."
  }
  assert {
    condition     = !can(regex("ec2:(Run|Create|Terminate|Delete)", aws_iam_policy.region["us-west-2"].policy))
    error_message = "If all clusters are observed, the policy allows no launch and no termination."
  }
}

run "own_keys" {
  command = plan

  variables {
    regions = {
      eu-central-1 = {
        clusters       = [{ name = "lab", node_role_arns = ["arn:aws:iam::123456789012:role/lab"] }]
        queue_arns     = ["arn:aws:sqs:eu-central-1:123456789012:outrigger"]
        queue_key_arns = ["arn:aws:kms:eu-central-1:123456789012:key/0123"]
      }
      us-west-2 = { clusters = [{ name = "far", node_role_arns = ["arn:aws:iam::123456789012:role/far"] }] }
    }
  }

  assert {
    condition     = keys(aws_iam_role_policy.keys) == ["eu-central-1"]
    error_message = "Only a region with own keys has a policy for them."
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
    error_message = "A role for other accounts has no instance profile."
  }
}

run "external_id_of_a_host" {
  command = plan

  variables {
    external_id = "acme"
  }

  expect_failures = [aws_iam_role.this]
}

run "no_nodes" {
  command = plan

  variables {
    regions = { eu-central-1 = { clusters = [{ name = "prod", mode = "manage" }] } }
  }

  expect_failures = [var.regions]
}

run "long_name" {
  command = plan

  variables {
    name = join("", [for _ in range(65) : "r"])
  }

  expect_failures = [var.name]
}

run "no_path" {
  command = plan

  variables {
    path = "teams"
  }

  expect_failures = [var.path]
}
