variables {
  installation = "platform"
}

run "alone" {
  command = plan

  assert {
    condition     = output.assume_policy == null && output.spoke_trust == null
    error_message = "Without other accounts nobody assumes anything."
  }
  assert {
    condition     = jsondecode(output.host_trust).Statement[0].Principal == { Service = ["ec2.amazonaws.com"] }
    error_message = "The host is an instance."
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
    error_message = "The daemon assumes the roles that are named, and no others."
  }
  assert {
    condition     = jsondecode(output.spoke_trust).Statement[0].Principal == { AWS = ["arn:aws:iam::123456789012:role/outrigger"] }
    error_message = "The roles that are named may assume it, and no others."
  }
}

run "china" {
  command = plan

  variables {
    partition = "aws-cn"
  }

  assert {
    condition     = jsondecode(output.host_trust).Statement[0].Principal == { Service = ["ec2.amazonaws.com.cn"] }
    error_message = "EC2 has a name of its own there."
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
