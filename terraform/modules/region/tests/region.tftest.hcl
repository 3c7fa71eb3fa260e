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
}

variables {
  installation = "platform"
}

run "queue" {
  command = plan

  assert {
    condition     = aws_sqs_queue.this.message_retention_seconds == 300 && aws_sqs_queue.this.sqs_managed_sse_enabled
    error_message = "Messages are encrypted and kept for five minutes."
  }
  assert {
    condition     = length(aws_cloudwatch_event_rule.this) == 5 && length(aws_cloudwatch_event_target.this) == 5
    error_message = "Every event type has a rule, and every rule a target."
  }
}

run "key" {
  command = plan

  variables {
    kms_key_arn = "arn:aws:kms:eu-central-1:123456789012:key/0123"
  }

  assert {
    condition = (
      aws_sqs_queue.this.kms_master_key_id == "arn:aws:kms:eu-central-1:123456789012:key/0123" &&
      output.queue_key_arns == tolist(["arn:aws:kms:eu-central-1:123456789012:key/0123"])
    )
    error_message = "The queue uses the key, and the output has its ARN."
  }
}

run "alias" {
  command = plan

  variables {
    kms_key_arn = "alias/queue"
  }

  expect_failures = [var.kms_key_arn]
}

run "too_long_name" {
  command = plan

  variables {
    name = join("", [for _ in range(40) : "q"])
  }

  expect_failures = [var.name]
}
