# Interruption events of one account and region: the queue, and the EventBridge rules that send to it.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_region" "current" {
  region = var.region
}

module "render" {
  source = "../render"

  installation = var.installation
  partition    = data.aws_partition.current.partition
  region       = data.aws_region.current.region
  account_id   = data.aws_caller_identity.current.account_id
  queue_name   = var.name
}

resource "aws_sqs_queue" "this" {
  region = var.region
  name   = var.name
  # Older messages are outdated: the daemon has listed the instance in the meantime.
  message_retention_seconds         = 300
  sqs_managed_sse_enabled           = var.kms_key_arn == null ? true : null
  kms_master_key_id                 = var.kms_key_arn
  kms_data_key_reuse_period_seconds = var.kms_key_arn == null ? null : 300
  tags                              = var.tags
}

resource "aws_sqs_queue_policy" "this" {
  region    = var.region
  queue_url = aws_sqs_queue.this.url
  policy    = module.render.queue_policy
}

resource "aws_cloudwatch_event_rule" "this" {
  for_each = module.render.event_patterns

  region        = var.region
  name          = module.render.event_rules[each.key]
  description   = "Interruption events for Outrigger: ${replace(each.key, "_", " ")}"
  event_pattern = each.value
  tags          = var.tags
}

resource "aws_cloudwatch_event_target" "this" {
  for_each = aws_cloudwatch_event_rule.this

  region    = var.region
  rule      = each.value.name
  target_id = "outrigger"
  arn       = aws_sqs_queue.this.arn
}
