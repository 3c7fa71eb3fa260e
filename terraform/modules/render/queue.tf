# Events about instances, and the policy of their queue. An account and region has one queue for all
# clusters.

locals {
  event_patterns = {
    # The daemon handles only scheduled maintenance of instances from AWS Health.
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
    # The daemon finds starting instances in listings.
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

  # EventBridge allows names of up to 64 characters.
  event_rules = { for name in keys(local.event_patterns) : name => "${var.queue_name}-${replace(name, "_", "-")}" }

  queue_arn = "arn:${var.partition}:sqs:${var.region}:${var.account_id}:${var.queue_name}"

  queue_policy = {
    Version = "2012-10-17"
    Statement = [
      # Only these rules may send messages, and no rules of other accounts.
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

  # In a key policy `*` is the key itself.
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
