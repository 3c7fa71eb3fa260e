variable "installation" {
  description = "Name of the installation, as `outrigger { installation = … }` says it: only what carries it as a tag is ever touched."
  type        = string

  validation {
    condition     = length(var.installation) > 0
    error_message = "The installation has a name: without one nothing tells its instances from others."
  }
}

variable "partition" {
  description = "Partition of AWS: `aws`, `aws-cn` or `aws-us-gov`."
  type        = string
  default     = "aws"
}

variable "region" {
  description = "Region of the instances."
  type        = string
}

variable "account_id" {
  description = "Account of the instances."
  type        = string

  validation {
    condition     = can(regex("^[0-9]{12}$", var.account_id))
    error_message = "An account id has twelve digits."
  }
}

variable "node_role_arns" {
  description = "Roles that nodes may be given."
  type        = list(string)

  validation {
    condition     = length(var.node_role_arns) > 0
    error_message = "Nodes have a role: name at least one."
  }
}

variable "manage_instance_profiles" {
  description = "Whether Outrigger makes instance profiles for roles; false where node classes name `instance_profile`."
  type        = bool
  default     = false
}

variable "queue_arns" {
  description = "Queues in which AWS tells of interruptions."
  type        = list(string)
  default     = []
}

variable "eks_cluster_arns" {
  description = "EKS clusters that may be asked for their endpoint, CA and Service addresses."
  type        = list(string)
  default     = []
}

variable "ssm_parameter_arns" {
  description = "SSM parameters beyond those of AWS: image ids and join tokens that node classes name."
  type        = list(string)
  default     = []
}
