variable "installation" {
  description = "Name of the installation."
  type        = string
}

variable "name" {
  description = "Name of the queue, and name prefix of its EventBridge rules. At most 39 characters."
  type        = string
  default     = "outrigger"

  validation {
    condition     = can(regex("^[-A-Za-z0-9_]{1,39}$", var.name))
    error_message = "The queue name must consist of at most 39 letters, digits, hyphens and underscores. The rule names add up to 25 characters to it, and EventBridge allows 64."
  }
}

variable "region" {
  description = "Region of the queue. Defaults to the region of the provider."
  type        = string
  default     = null
}

variable "kms_key_arn" {
  description = "ARN of your own KMS key for the messages. Its policy must include `key_policy`. Defaults to an SQS-managed key."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null ? true : can(regex("^arn:[^:]+:kms:[^:]+:[0-9]{12}:key/", var.kms_key_arn))
    error_message = "kms_key_arn must be the ARN of a key, not of an alias. IAM grants no permissions by alias."
  }
}

variable "tags" {
  description = "Tags of the queue and its rules."
  type        = map(string)
  default     = {}
}
