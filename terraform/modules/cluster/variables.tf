variable "installation" {
  description = "Name of the installation."
  type        = string
}

variable "cluster_name" {
  description = "Name of the cluster in EKS."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-Za-z][0-9A-Za-z_-]{0,99}$", var.cluster_name))
    error_message = "EKS takes names of letters, digits, hyphens and underscores, 100 at most."
  }
}

variable "name" {
  description = "Name of the cluster to Outrigger; that in EKS if missing."
  type        = string
  default     = null
}

variable "region" {
  description = "Region of the cluster; that of the provider if missing."
  type        = string
  default     = null
}

variable "mode" {
  description = "What the daemon may do in the cluster, and does: `observe`, plan only, or `manage`."
  type        = string
  default     = "observe"

  validation {
    condition     = contains(["observe", "manage"], var.mode)
    error_message = "The mode is `observe` or `manage`."
  }
}

variable "daemon_role_arn" {
  description = "Role that the daemon has, or assumes, in the account of the cluster."
  type        = string

  validation {
    condition     = can(regex("^arn:[^:]+:iam::[0-9]{12}:role/[^*?]+$", var.daemon_role_arn))
    error_message = "A role is given by its ARN."
  }
}

variable "assume_role" {
  description = "Whether the daemon assumes that role, from another account."
  type        = bool
  default     = false
}

variable "queue_name" {
  description = "Queue of the account and region; without one, only the health of instances is asked."
  type        = string
  default     = null
}

variable "create_daemon_access_entry" {
  description = "Whether the daemon is let in; false where the role has an access entry already."
  type        = bool
  default     = true
}

variable "user" {
  description = "User that the daemon is to the cluster."
  type        = string
  default     = "outrigger"
}

variable "group" {
  description = "Group of that user, which the rights are bound to."
  type        = string
  default     = "outrigger"
}

variable "create_node_role" {
  description = "Whether the role of the nodes is made."
  type        = bool
  default     = true
}

variable "node_role_name" {
  description = "Name of the role that is made, and of its instance profile; `outrigger-node-CLUSTER` if missing."
  type        = string
  default     = null
}

variable "node_role_arn" {
  description = "Role of the nodes that is there already, where none is made."
  type        = string
  default     = null

  validation {
    condition     = var.node_role_arn == null ? true : can(regex("^arn:[^:]+:iam::[0-9]{12}:role/[^*?]+$", var.node_role_arn))
    error_message = "A role is given by its ARN."
  }
}

variable "node_role_policies" {
  description = "ARNs of further policies of the role that is made, by any name."
  type        = map(string)
  default     = {}
}

variable "attach_cni_policy" {
  description = "Whether nodes have the rights of the VPC CNI; false where it has a role of its own."
  type        = bool
  default     = true
}

variable "create_instance_profile" {
  description = "Whether the instance profile of the nodes is made."
  type        = bool
  default     = true
}

variable "instance_profile_name" {
  description = "Instance profile of the nodes that is there already, where none is made."
  type        = string
  default     = null
}

variable "create_node_access_entry" {
  description = "Whether nodes are let in; false where their role has an access entry already."
  type        = bool
  default     = true
}

variable "node_access_entry_type" {
  description = "Kind of the nodes: `EC2_LINUX` or `EC2_WINDOWS`."
  type        = string
  default     = "EC2_LINUX"

  validation {
    condition     = contains(["EC2_LINUX", "EC2_WINDOWS"], var.node_access_entry_type)
    error_message = "The kind of the nodes is `EC2_LINUX` or `EC2_WINDOWS`."
  }
}

variable "path" {
  description = "Path of the role and its instance profile."
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

variable "discovery_tags" {
  description = "Tags by which node classes find subnets and security groups: a plan warns where nothing has them."
  type        = map(string)
  default     = {}
}

variable "tag_subnet_ids" {
  description = "Subnets of the nodes that are given these tags; none where they have them already."
  type        = set(string)
  default     = []
}

variable "tag_security_group" {
  description = "Whether the security group that EKS has made for the cluster is given these tags."
  type        = bool
  default     = false
}

variable "lease_name" {
  description = "Name of the Lease in kube-system by which hosts agree who leads the cluster."
  type        = string
  default     = "outrigger"
}

variable "zonal_shift" {
  description = "Whether zones that AWS shifts traffic away from get no new nodes."
  type        = bool
  default     = false
}

variable "adopt" {
  description = "Whether nodes that Karpenter has made become Outrigger's once Karpenter is gone."
  type        = bool
  default     = null
}

variable "placement_hints" {
  description = "Right to tell waiting pods of their node, for `placement_hints` of the cluster."
  type        = bool
  default     = true
}

variable "early_binding" {
  description = "Rights to make nodes, bind pods and delete them, for `binding = \"early\"` of the cluster."
  type        = bool
  default     = false
}

variable "forced_ends" {
  description = "Right to delete pods, for pools with `termination_grace_period` or `on_blocked = \"force\"`."
  type        = bool
  default     = false
}

variable "capacity_buffers" {
  description = "Right to read CapacityBuffers and the PodTemplates that they name, and to write the status of CapacityBuffers."
  type        = bool
  default     = true
}

variable "events" {
  description = "Right to write events about pods and nodes, for `events` of the cluster."
  type        = bool
  default     = true
}

variable "default_spread" {
  description = "Right to read what selects pods, for `default_spread` of the `scheduler` block."
  type        = bool
  default     = false
}

variable "tags" {
  description = "Tags of everything made here, and of what is launched for the cluster."
  type        = map(string)
  default     = {}
}
