variables {
  installation = "platform"
}

run "alone" {
  command = plan

  assert {
    condition     = output.assume_policy == null && output.spoke_trust == null
    error_message = "Without roles of other accounts there is no spoke trust and no assume policy."
  }
  assert {
    condition     = jsondecode(output.host_trust).Statement[0].Principal == { Service = ["ec2.amazonaws.com"] }
    error_message = "EC2 may assume the role of the host."
  }
}

run "across" {
  command = plan

  variables {
    assume_role_arns  = ["arn:aws:iam::210987654321:role/outrigger"]
    trusted_role_arns = ["arn:aws:iam::123456789012:role/outrigger"]
  }

  assert {
    condition     = jsondecode(output.assume_policy).Statement[0].Resource == ["arn:aws:iam::210987654321:role/outrigger"]
    error_message = "The daemon may assume only the given roles."
  }
  assert {
    condition     = jsondecode(output.spoke_trust).Statement[0].Principal == { AWS = ["arn:aws:iam::123456789012:role/outrigger"] }
    error_message = "Only the given roles may assume the spoke role."
  }
}

run "external_id" {
  command = plan

  variables {
    trusted_role_arns = ["arn:aws:iam::123456789012:role/outrigger"]
    external_id       = "outrigger-prod"
  }

  assert {
    condition     = jsondecode(output.spoke_trust).Statement[0].Condition == { StringEquals = { "sts:ExternalId" = "outrigger-prod" } }
    error_message = "The spoke role is assumed only with the external ID."
  }
}

run "china" {
  command = plan

  variables {
    partition = "aws-cn"
  }

  assert {
    condition     = jsondecode(output.host_trust).Statement[0].Principal == { Service = ["ec2.amazonaws.com.cn"] }
    error_message = "In China EC2 has a different service name."
  }
}

run "any_account" {
  command = plan

  variables {
    trusted_role_arns = ["arn:aws:iam::123456789012:root"]
  }

  expect_failures = [var.trusted_role_arns]
}

run "any_role" {
  command = plan

  variables {
    assume_role_arns = ["arn:aws:iam::210987654321:role/*"]
  }

  expect_failures = [var.assume_role_arns]
}
