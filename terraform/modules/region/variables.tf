variable "installation" {
  description = "Name of the installation."
  type        = string
}

variable "name" {
  description = "Name of the queue, with which the names of its rules begin."
  type        = string
  default     = "outrigger"
}

variable "region" {
  description = "Region of the queue; that of the provider if missing."
  type        = string
  default     = null
}

variable "kms_key_id" {
  description = "Key that messages are encrypted with; one of SQS if missing. EventBridge must be allowed to use it."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of the queue and its rules."
  type        = map(string)
  default     = {}
}
