output "queue_name" {
  description = "Name of the queue, for the `interruption` block of the clusters in this region."
  value       = aws_sqs_queue.this.name
}

output "queue_arn" {
  description = "ARN of the queue, for the policy of the daemon."
  value       = aws_sqs_queue.this.arn
}

output "queue_url" {
  description = "URL of the queue."
  value       = aws_sqs_queue.this.url
}

output "event_rule_arns" {
  description = "ARNs of the EventBridge rules, by event type."
  value       = { for kind, own in aws_cloudwatch_event_rule.this : kind => own.arn }
}

output "queue_key_arns" {
  description = "Your own KMS key of the queue, if any, for the policy of the daemon."
  value       = var.kms_key_arn == null ? [] : [var.kms_key_arn]
}

output "key_policy" {
  description = "Policy that your own KMS key must include, as JSON: it allows the EventBridge rules to use the key for this queue."
  value       = module.render.queue_key_policy
}
