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

  queue_arn = "arn:${var.partition}:sqs:${var.region}:${var.account_id}:${var.queue_name}"

  queue_policy = {
    Version = "2012-10-17"
    Statement = [
      # Rules of other accounts are nobody's.
      {
        Sid       = "AllowEventRules"
        Effect    = "Allow"
        Principal = { Service = ["events.amazonaws.com"] }
        Action    = ["sqs:SendMessage"]
        Resource  = [local.queue_arn]
        Condition = {
          ArnLike = {
            "aws:SourceArn" = "arn:${var.partition}:events:${var.region}:${var.account_id}:rule/${var.queue_name}-*"
          }
        }
      },
      # Messages that come back from a dead-letter queue of the same account.
      {
        Sid       = "AllowRedrive"
        Effect    = "Allow"
        Principal = { Service = ["sqs.amazonaws.com"] }
        Action    = ["sqs:SendMessage"]
        Resource  = [local.queue_arn]
        Condition = { StringEquals = { "aws:SourceAccount" = var.account_id } }
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
}
