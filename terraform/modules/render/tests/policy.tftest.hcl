variables {
  installation   = "platform"
  region         = "eu-central-1"
  account_id     = "123456789012"
  node_role_arns = ["arn:aws:iam::123456789012:role/node"]
}

run "least" {
  command = plan

  assert {
    condition     = !strcontains(output.policy, "iam:CreateInstanceProfile")
    error_message = "Instance profiles are not to be made unless that is asked for."
  }
  assert {
    condition = alltrue([
      for own in jsondecode(output.policy).Statement :
      !contains(own.Resource, "*") || alltrue([for action in own.Action : can(regex(":(Describe|Get|List)", action))])
    ])
    error_message = "What changes anything is not granted on everything."
  }
  assert {
    condition     = length(output.policy) < 6144
    error_message = "A managed policy has 6,144 characters."
  }
}

run "all" {
  command = plan

  variables {
    manage_instance_profiles = true
    queue_arns               = ["arn:aws:sqs:eu-central-1:123456789012:outrigger"]
    eks_cluster_arns         = ["arn:aws:eks:eu-central-1:123456789012:cluster/prod"]
  }

  assert {
    condition     = length(jsondecode(output.policy).Statement) == 18
    error_message = "Every statement is there."
  }
}

run "nobody" {
  command = plan

  variables {
    installation = ""
  }

  expect_failures = [var.installation]
}

run "no_account" {
  command = plan

  variables {
    account_id = "1234"
  }

  expect_failures = [var.account_id]
}
