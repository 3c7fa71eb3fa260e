# What AWS tells of instances, and the queue that it tells it in: one for an account and region, whoever's
# cluster an instance is in.

locals {
  event_patterns = {
    # Of AWS Health only maintenance of instances is understood.
    health = {
      source        = ["aws.health"]
      "detail-type" = ["AWS Health Event"]
      detail        = { service = ["EC2"], eventTypeCategory = ["scheduledChange"] }
    }
    spot_interruption = {
      source        = ["aws.ec2"]
      "detail-type" = ["EC2 Spot Instance Interruption Warning"]
    }
    rebalance = {
      source        = ["aws.ec2"]
      "detail-type" = ["EC2 Instance Rebalance Recommendation"]
    }
    # Instances that start are seen in listings.
    state_change = {
      source        = ["aws.ec2"]
      "detail-type" = ["EC2 Instance State-change Notification"]
      detail        = { state = ["stopping", "stopped", "shutting-down", "terminated"] }
    }
    reservation_interruption = {
      source        = ["aws.ec2"]
      "detail-type" = ["EC2 Capacity Reservation Instance Interruption Warning"]
    }
  }

  # EventBridge takes names of 64 characters.
  event_rules = { for name in keys(local.event_patterns) : name => "${var.queue_name}-${replace(name, "_", "-")}" }

  queue_arn = "arn:${var.partition}:sqs:${var.region}:${var.account_id}:${var.queue_name}"

  queue_policy = {
    Version = "2012-10-17"
    Statement = [
      # By these rules and no others: those of other accounts are nobody's.
      {
        Sid       = "AllowEventRules"
        Effect    = "Allow"
        Principal = { Service = ["events.amazonaws.com"] }
        Action    = ["sqs:SendMessage"]
        Resource  = [local.queue_arn]
        Condition = {
          ArnEquals = {
            "aws:SourceArn" = [
              for name in values(local.event_rules) :
              "arn:${var.partition}:events:${var.region}:${var.account_id}:rule/${name}"
            ]
          }
        }
      },
      {
        Sid       = "DenyWithoutTLS"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["sqs:*"]
        Resource  = [local.queue_arn]
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  }
  # A key of your own. SQS uses it in the name of whoever sends or receives, for messages of one queue, as
  # its encryption context says. The daemon asks nothing of KMS itself, so this is no part of policy.tf.
  queue_key = [
    {
      Sid       = "AllowQueueKeyActions"
      Effect    = "Allow"
      Action    = ["kms:Decrypt"]
      Resource  = var.queue_key_arns
      Condition = { StringEquals = { "kms:EncryptionContext:aws:sqs:arn" = var.queue_arns } }
    },
  ]

  # In the policy of a key `*` is the key.
  queue_key_policy = {
    Version = "2012-10-17"
    Statement = [{
      Sid       = "AllowEventRulesToUseKey"
      Effect    = "Allow"
      Principal = { Service = ["events.amazonaws.com"] }
      Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
      Resource  = ["*"]
      Condition = { StringEquals = { "kms:EncryptionContext:aws:sqs:arn" = local.queue_arn } }
    }]
  }
}
