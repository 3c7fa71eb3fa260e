output "queue_name" {
  description = "Name of the queue, for `interruption` of the clusters in this region."
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
  description = "ARNs of the rules, by kind of event."
  value       = { for kind, own in aws_cloudwatch_event_rule.this : kind => own.arn }
}

output "queue_key_arns" {
  description = "The key of your own that the queue is encrypted with, if any, for the policy of the daemon."
  value       = var.kms_key_arn == null ? [] : [var.kms_key_arn]
}

output "key_policy" {
  description = "What the policy of a key of your own has to say, as JSON: the rules may use it for this queue."
  value       = module.render.queue_key_policy
}
