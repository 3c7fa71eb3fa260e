# Your own KMS keys. SQS and Systems Manager use them on behalf of the daemon, which does not call KMS itself. The
# encryption context names the queue or the parameter. A policy of their own, because `policy` is close to the
# size limit.

locals {
  key_statements = [
    for own in [
      {
        Sid       = "AllowQueueKeyActions"
        Resource  = var.queue_key_arns
        Condition = { StringEquals = { "kms:EncryptionContext:aws:sqs:arn" = var.queue_arns } }
      },
      {
        Sid       = "AllowParameterKeyActions"
        Resource  = var.ssm_parameter_key_arns
        Condition = { StringLike = { "kms:EncryptionContext:PARAMETER_ARN" = var.ssm_parameter_arns } }
      },
    ] : merge({ Effect = "Allow", Action = ["kms:Decrypt"] }, own) if length(own.Resource) > 0
  ]
}
