variable "installation" {
  description = "Name of the installation: the role may touch only what carries it as a tag."
  type        = string
}

variable "name" {
  description = "Name of the role, of its instance profile, and with which the names of its policies begin."
  type        = string
  default     = "outrigger"
}

variable "path" {
  description = "Path of the role and its policies."
  type        = string
  default     = "/"
}

variable "permissions_boundary" {
  description = "ARN of the boundary of the role."
  type        = string
  default     = null
}

variable "regions" {
  description = "Regions of this account with clusters, by name: the roles of their nodes, their queues, clusters and SSM parameters."
  type = map(object({
    node_role_arns     = list(string)
    queue_arns         = optional(list(string), [])
    eks_cluster_arns   = optional(list(string), [])
    ssm_parameter_arns = optional(list(string), [])
  }))
  default = {}

  validation {
    condition     = alltrue([for own in values(var.regions) : length(own.node_role_arns) > 0])
    error_message = "Nodes have a role: name at least one in each region."
  }
  validation {
    condition     = length(var.regions) <= 8
    error_message = "A role takes ten policies, and not all are for regions: use another role for more than eight regions."
  }
}

variable "manage_instance_profiles" {
  description = "Whether Outrigger makes instance profiles for roles; false where node classes name `instance_profile`."
  type        = bool
  default     = false
}

variable "assume_role_arns" {
  description = "Roles of other accounts that the daemon may assume: `role_arn` of clusters."
  type        = list(string)
  default     = []
}

variable "trusted_role_arns" {
  description = "Roles that assume this one from another account. With any, it is no role of a host."
  type        = list(string)
  default     = []
}

variable "session_manager" {
  description = "Whether the host may be reached by Session Manager."
  type        = bool
  default     = true
}

variable "tags" {
  description = "Tags of the role, its policies and instance profile."
  type        = map(string)
  default     = {}
}
