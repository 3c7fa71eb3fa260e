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
    error_message = "The policy applies to this queue."
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
    error_message = "Requests without TLS are denied."
  }
  assert {
    condition = alltrue([
      for own in jsondecode(output.queue_policy).Statement :
      own.Action == ["sqs:SendMessage"] && own.Principal == { Service = ["events.amazonaws.com"] } && own.Condition == {
        ArnEquals = {
          "aws:SourceArn" = [
            for name in [
              "health", "rebalance", "reservation-interruption", "spot-interruption", "state-change",
            ] : "arn:aws-cn:events:cn-north-1:123456789012:rule/outrigger-${name}"
          ]
        }
      } if own.Effect == "Allow"
    ])
    error_message = "Only these rules of this account may send messages."
  }
}

run "key" {
  command = plan

  assert {
    condition = jsondecode(output.queue_key_policy).Statement == [{
      Sid       = "AllowEventRulesToUseKey"
      Effect    = "Allow"
      Principal = { Service = ["events.amazonaws.com"] }
      Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
      Resource  = ["*"]
      Condition = {
        StringEquals = { "kms:EncryptionContext:aws:sqs:arn" = "arn:aws-cn:sqs:cn-north-1:123456789012:outrigger" }
      }
    }]
    error_message = "The rules may use the key only for this queue."
  }
}

run "own_key" {
  command = plan

  variables {
    queue_arns     = ["arn:aws-cn:sqs:cn-north-1:123456789012:outrigger"]
    queue_key_arns = ["arn:aws-cn:kms:cn-north-1:123456789012:key/0123"]
  }

  assert {
    condition = [
      for own in jsondecode(output.decrypt_policy).Statement : own
      ] == [{
        Sid      = "AllowQueueKeyActions"
        Effect   = "Allow"
        Action   = ["kms:Decrypt"]
        Resource = ["arn:aws-cn:kms:cn-north-1:123456789012:key/0123"]
        Condition = {
          StringEquals = { "kms:EncryptionContext:aws:sqs:arn" = ["arn:aws-cn:sqs:cn-north-1:123456789012:outrigger"] }
        }
    }]
    error_message = "The daemon may decrypt the messages of the queue in either mode."
  }
}

run "key_of_sqs" {
  command = plan

  variables {
    queue_arns = ["arn:aws-cn:sqs:cn-north-1:123456789012:outrigger"]
  }

  assert {
    condition     = !strcontains(output.policy, "kms:")
    error_message = "Without a key, the policy has no KMS permission."
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
    error_message = "Every event type that the daemon handles has a rule."
  }
}

# EventBridge allows names of up to 64 characters.
run "long_name" {
  command = plan

  variables {
    queue_name = join("", [for _ in range(39) : "q"])
  }

  assert {
    condition     = max([for name in values(output.event_rules) : length(name)]...) == 64
    error_message = "The longest queue name has a rule name of exactly 64 characters."
  }
  assert {
    condition     = keys(output.event_rules) == keys(output.event_patterns)
    error_message = "Each pattern has a rule."
  }
}

run "too_long_name" {
  command = plan

  variables {
    queue_name = join("", [for _ in range(40) : "q"])
  }

  expect_failures = [var.queue_name]
}

run "nowhere" {
  command = plan

  variables {
    region = ""
  }

  assert {
    condition     = output.queue_policy == null && output.policy == null && output.queue_key_policy == null
    error_message = "Without region and account_id the policy is null."
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
