variable "installation" {
  description = "Name of the installation."
  type        = string
}

variable "cluster_name" {
  description = "Name of the EKS cluster."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-Za-z][0-9A-Za-z_-]{0,99}$", var.cluster_name))
    error_message = "The name of an EKS cluster must consist of at most 100 letters, digits, hyphens and underscores."
  }
}

variable "name" {
  description = "Name of the cluster in Outrigger. Defaults to the name of the EKS cluster."
  type        = string
  default     = null
}

variable "region" {
  description = "Region of the cluster. Defaults to the region of the provider."
  type        = string
  default     = null
}

variable "mode" {
  description = "Mode of the cluster. With `observe` the daemon only plans and has read-only permissions; with `manage` it changes the cluster."
  type        = string
  default     = "observe"

  validation {
    condition     = contains(["observe", "manage"], var.mode)
    error_message = "mode must be `observe` or `manage`."
  }
}

variable "daemon_role_arn" {
  description = "Role of the daemon in the account of the cluster: its own role, or a role that it assumes."
  type        = string

  validation {
    condition     = can(regex("^arn:[^:]+:iam::[0-9]{12}:role/[^*?]+$", var.daemon_role_arn))
    error_message = "A role must be given by its ARN."
  }
}

variable "assume_role" {
  description = "The daemon assumes this role from another account."
  type        = bool
  default     = false
}

variable "external_id" {
  description = "External ID with which the daemon assumes the role: the `external_id` of the module iam of this account."
  type        = string
  default     = null

  validation {
    condition     = var.external_id == null ? true : can(regex("^[A-Za-z0-9_+=,.@:/-]{2,}$", var.external_id)) && length(var.external_id) <= 1224
    error_message = "external_id must have 2 to 1,224 letters, digits and characters of _+=,.@:/-."
  }
}

variable "queue_name" {
  description = "Name of the interruption queue of the account and region. Without a queue, the daemon only polls the status of instances."
  type        = string
  default     = null
}

variable "create_daemon_access_entry" {
  description = "Create an access entry for the daemon. Set to false if its role already has one."
  type        = bool
  default     = true
}

variable "user" {
  description = "Kubernetes user of the daemon."
  type        = string
  default     = "outrigger"
}

variable "group" {
  description = "Kubernetes group of the daemon. The roles are bound to this group."
  type        = string
  default     = "outrigger"
}

variable "create_node_role" {
  description = "Create the node role."
  type        = bool
  default     = true
}

variable "node_role_name" {
  description = "Name of the created node role and instance profile. Defaults to `outrigger-node-CLUSTER`."
  type        = string
  default     = null
}

variable "node_role_arn" {
  description = "ARN of an existing node role, if `create_node_role` is false."
  type        = string
  default     = null

  validation {
    condition     = var.node_role_arn == null ? true : can(regex("^arn:[^:]+:iam::[0-9]{12}:role/[^*?]+$", var.node_role_arn))
    error_message = "A role must be given by its ARN."
  }
}

variable "node_role_policies" {
  description = "ARNs of additional policies for the created node role, by any key."
  type        = map(string)
  default     = {}
}

variable "attach_cni_policy" {
  description = "Attach the permissions of the VPC CNI to the created node role, for IPv4 or IPv6 as the cluster uses. Set to false if the VPC CNI has its own role."
  type        = bool
  default     = true
}

variable "node_session_manager" {
  description = "Allow Session Manager connections to the nodes, as root, for everyone with `ssm:StartSession`: attach AmazonSSMManagedInstanceCore to the created node role."
  type        = bool
  default     = false
}

variable "create_instance_profile" {
  description = "Create the instance profile of the nodes."
  type        = bool
  default     = true
}

variable "instance_profile_name" {
  description = "Name of an existing instance profile, if `create_instance_profile` is false."
  type        = string
  default     = null
}

variable "create_node_access_entry" {
  description = "Create an access entry for the nodes. Set to false if their role already has one."
  type        = bool
  default     = true
}

variable "node_access_entry_type" {
  description = "Type of the access entry for the nodes: `EC2_LINUX` or `EC2_WINDOWS`."
  type        = string
  default     = "EC2_LINUX"

  validation {
    condition     = contains(["EC2_LINUX", "EC2_WINDOWS"], var.node_access_entry_type)
    error_message = "node_access_entry_type must be `EC2_LINUX` or `EC2_WINDOWS`."
  }
}

variable "path" {
  description = "IAM path of the node role and its instance profile."
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

variable "discovery_tags" {
  description = "Tags that node classes use to find subnets and security groups. `terraform plan` warns if no resource has these tags."
  type        = map(string)
  default     = {}
}

variable "tag_subnet_ids" {
  description = "Node subnets to tag with `discovery_tags`. Leave empty if they already have these tags."
  type        = set(string)
  default     = []
}

variable "tag_security_group" {
  description = "Tag the security group that EKS created for the cluster with `discovery_tags`."
  type        = bool
  default     = false
}

variable "lease_name" {
  description = "Name of the Lease in kube-system for leader election."
  type        = string
  default     = "outrigger"
}

variable "zonal_shift" {
  description = "Launch no nodes in zones with an active zonal shift."
  type        = bool
  default     = false
}

variable "adopt" {
  description = "Adopt nodes that Karpenter launched, after Karpenter is removed."
  type        = bool
  default     = null
}

variable "placement_hints" {
  description = "Grant permission to set the nominated node of pending pods, for `placement_hints` of the cluster."
  type        = bool
  default     = true
}

variable "early_binding" {
  description = "Grant permissions to create nodes, bind pods and delete pods, for `binding = \"early\"` of the cluster."
  type        = bool
  default     = false
}

variable "forced_ends" {
  description = "Grant permission to delete pods, for pools with `termination_grace_period` or `on_blocked = \"force\"`."
  type        = bool
  default     = false
}

variable "capacity_buffers" {
  description = "Grant permissions to read CapacityBuffers and their PodTemplates, and to write the status of CapacityBuffers."
  type        = bool
  default     = true
}

variable "events" {
  description = "Grant permission to create events about pods and nodes, for `events` of the cluster."
  type        = bool
  default     = true
}

variable "default_spread" {
  description = "Grant permission to read objects that select pods, for `default_spread` of the `scheduler` block."
  type        = bool
  default     = false
}

variable "tags" {
  description = "Tags of all created resources, and of the instances that Outrigger launches for the cluster."
  type        = map(string)
  default     = {}
}
