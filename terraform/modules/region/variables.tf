variable "installation" {
  description = "Name of the installation."
  type        = string
}

variable "name" {
  description = "Name of the queue, with which the names of its rules begin: 39 characters at most."
  type        = string
  default     = "outrigger"

  validation {
    condition     = can(regex("^[-A-Za-z0-9_]{1,39}$", var.name))
    error_message = "A queue has a name of letters, digits, hyphens and underscores, 39 at most: those of its rules, which have 64, are longer by up to 25."
  }
}

variable "region" {
  description = "Region of the queue; that of the provider if missing."
  type        = string
  default     = null
}

variable "kms_key_arn" {
  description = "ARN of a key of your own that messages are encrypted with, whose policy says what `key_policy` does; one of SQS if missing."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null ? true : can(regex("^arn:[^:]+:kms:[^:]+:[0-9]{12}:key/", var.kms_key_arn))
    error_message = "A key is given by its ARN: nobody is granted one by an alias."
  }
}

variable "tags" {
  description = "Tags of the queue and its rules."
  type        = map(string)
  default     = {}
}
