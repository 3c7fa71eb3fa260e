variables {
  installation = "platform"
  region       = "cn-north-1"
  account_id   = "123456789012"
  partition    = "aws-cn"
}

run "queue" {
  command = plan

  assert {
    condition = alltrue([
      for own in jsondecode(output.queue_policy).Statement :
      own.Resource == ["arn:aws-cn:sqs:cn-north-1:123456789012:outrigger"]
    ])
    error_message = "The policy is about this queue."
  }
  assert {
    condition = [
      for own in jsondecode(output.queue_policy).Statement : own if own.Effect == "Deny"
      ][0] == {
      Sid       = "DenyWithoutTLS"
      Effect    = "Deny"
      Principal = "*"
      Action    = ["sqs:*"]
      Resource  = ["arn:aws-cn:sqs:cn-north-1:123456789012:outrigger"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }
    error_message = "Nobody uses the queue without TLS."
  }
  assert {
    condition = alltrue([
      for own in jsondecode(output.queue_policy).Statement :
      own.Action == ["sqs:SendMessage"] && length(own.Condition) == 1 if own.Effect == "Allow"
    ])
    error_message = "Only services of AWS send, and only for this account."
  }
}

run "events" {
  command = plan

  assert {
    condition = toset(flatten([for own in values(output.event_patterns) : jsondecode(own)["detail-type"]])) == toset([
      "AWS Health Event",
      "EC2 Spot Instance Interruption Warning",
      "EC2 Instance Rebalance Recommendation",
      "EC2 Instance State-change Notification",
      "EC2 Capacity Reservation Instance Interruption Warning",
    ])
    error_message = "Every kind of event that the daemon understands has a rule."
  }
}

run "nowhere" {
  command = plan

  variables {
    region = ""
  }

  assert {
    condition     = output.queue_policy == null && output.policy == null
    error_message = "What is nowhere has no policy."
  }
}

run "no_region" {
  command = plan

  variables {
    region = "Frankfurt"
  }

  expect_failures = [var.region]
}

run "no_queue" {
  command = plan

  variables {
    queue_name = "out rigger"
  }

  expect_failures = [var.queue_name]
}
