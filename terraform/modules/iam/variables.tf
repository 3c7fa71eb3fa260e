variable "installation" {
  description = "Name of the installation: the role may touch only what carries it as a tag."
  type        = string
}

variable "name" {
  description = "Name of the role, of its instance profile, and with which the names of its policies begin."
  type        = string
  default     = "outrigger"

  validation {
    condition     = can(regex("^[A-Za-z0-9+=,.@_-]{1,64}$", var.name))
    error_message = "A role has a name of letters, digits and +=,.@_-, 64 at most."
  }
}

variable "path" {
  description = "Path of the role and its policies."
  type        = string
  default     = "/"

  validation {
    condition     = can(regex("^/([!-.0-~]+/)*$", var.path))
    error_message = "A path begins and ends with a slash."
  }
}

variable "permissions_boundary" {
  description = "ARN of the boundary of the role."
  type        = string
  default     = null
}

variable "regions" {
  description = "Regions of this account with clusters, by name: `rights` of each cluster, their queues with keys of your own, and SSM parameters."
  type = map(object({
    clusters = list(object({
      name            = string
      mode            = optional(string, "observe")
      node_role_arns  = optional(list(string), [])
      eks_cluster_arn = optional(string)
      zonal_shift     = optional(bool, false)
      adopt           = optional(bool, false)
    }))
    queue_arns         = optional(list(string), [])
    queue_key_arns     = optional(list(string), [])
    ssm_parameter_arns = optional(list(string), [])
  }))
  default = {}

  validation {
    condition = alltrue(flatten([
      for own in values(var.regions) : [
        for one in own.clusters : one.mode == "observe" || length(one.node_role_arns) > 0
      ]
    ]))
    error_message = "Nodes of a managed cluster have a role: name at least one."
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
