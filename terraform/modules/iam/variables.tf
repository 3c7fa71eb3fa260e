variable "installation" {
  description = "Name of the installation. The role can change only resources with this tag."
  type        = string
}

variable "name" {
  description = "Name of the role and its instance profile, and name prefix of its policies."
  type        = string
  default     = "outrigger"

  validation {
    condition     = can(regex("^[A-Za-z0-9+=,.@_-]{1,64}$", var.name))
    error_message = "name must consist of at most 64 letters, digits and characters of +=,.@_-."
  }
}

variable "path" {
  description = "IAM path of the role and its policies."
  type        = string
  default     = "/"

  validation {
    condition     = can(regex("^/([!-.0-~]+/)*$", var.path))
    error_message = "path must begin and end with a slash."
  }
}

variable "permissions_boundary" {
  description = "ARN of the permissions boundary of the role."
  type        = string
  default     = null
}

variable "regions" {
  description = "Regions of this account with clusters, by name: `rights` of each cluster, queues and SSM parameters, and your own keys of both."
  type = map(object({
    clusters = list(object({
      name            = string
      mode            = optional(string, "observe")
      node_role_arns  = optional(list(string), [])
      eks_cluster_arn = optional(string)
      zonal_shift     = optional(bool, false)
      adopt           = optional(bool, false)
    }))
    queue_arns             = optional(list(string), [])
    queue_key_arns         = optional(list(string), [])
    ssm_parameter_arns     = optional(list(string), [])
    ssm_parameter_key_arns = optional(list(string), [])
  }))
  default = {}

  validation {
    condition = alltrue(flatten([
      for own in values(var.regions) : [
        for one in own.clusters : one.mode == "observe" || length(one.node_role_arns) > 0
      ]
    ]))
    error_message = "A managed cluster requires at least one node role."
  }
  validation {
    condition     = length(var.regions) <= 8
    error_message = "A role can have ten policies, of which eight are for regions. Use another role for further regions."
  }
}

variable "manage_instance_profiles" {
  description = "Outrigger creates instance profiles for the roles of node classes. Set to false if node classes set `instance_profile`."
  type        = bool
  default     = false
}

variable "assume_role_arns" {
  description = "Roles of other accounts that the daemon may assume: the `role_arn` of clusters."
  type        = list(string)
  default     = []
}

variable "trusted_role_arns" {
  description = "Roles that may assume this role from another account. If set, this role is not a host role."
  type        = list(string)
  default     = []
}

variable "external_id" {
  description = "External ID that `trusted_role_arns` must send: the `external_id` of clusters."
  type        = string
  default     = null
}

variable "session_manager" {
  description = "Allow Session Manager connections to the host."
  type        = bool
  default     = true
}

variable "tags" {
  description = "Tags of the role, its policies and instance profile."
  type        = map(string)
  default     = {}
}
