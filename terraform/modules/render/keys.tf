# Your own KMS keys. SQS and Systems Manager use them on behalf of the daemon, which does not call KMS itself. The
# encryption context names the queue or the parameter. A policy of their own, because `policy` is close to the
# size limit.

locals {
  queue_key = [
    {
      Sid       = "AllowQueueKeyActions"
      Effect    = "Allow"
      Action    = ["kms:Decrypt"]
      Resource  = var.queue_key_arns
      Condition = { StringEquals = { "kms:EncryptionContext:aws:sqs:arn" = var.queue_arns } }
    },
  ]
  parameter_key = [
    {
      Sid       = "AllowParameterKeyActions"
      Effect    = "Allow"
      Action    = ["kms:Decrypt"]
      Resource  = var.ssm_parameter_key_arns
      Condition = { StringLike = { "kms:EncryptionContext:PARAMETER_ARN" = var.ssm_parameter_arns } }
    },
  ]

  key_statements = concat(
    [for own in local.queue_key : own if length(var.queue_key_arns) > 0],
    [for own in local.parameter_key : own if length(var.ssm_parameter_key_arns) > 0],
  )
}
