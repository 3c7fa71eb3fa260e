variable "installation" {
  description = "Name of the installation, the same as in `outrigger { installation = … }`. Outrigger changes only resources with this tag."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$", var.installation))
    error_message = "installation must be a non-empty, valid Kubernetes label value. Outrigger identifies its instances by this name."
  }
}

variable "partition" {
  description = "AWS partition, such as `aws`, `aws-cn` or `aws-us-gov`."
  type        = string
  default     = "aws"

  validation {
    condition     = can(regex("^aws(-[a-z]+)*$", var.partition))
    error_message = "partition must be like `aws-cn`."
  }
}

variable "region" {
  description = "Region of the instances and of the queue. Required for `policy` and `queue_policy`."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^([a-z]+(-[a-z]+)+-[0-9]+)?$", var.region))
    error_message = "region must be like `eu-central-1`."
  }
}

variable "account_id" {
  description = "Account ID of the instances and of the queue. Required for `policy` and `queue_policy`."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^([0-9]{12})?$", var.account_id))
    error_message = "account_id must have twelve digits."
  }
}

variable "cluster_rights" {
  description = "Clusters of the account and region for `policy`: their name in Outrigger, mode, node roles and EKS ARN, whether to respect zonal shifts, and whether to adopt nodes that Karpenter launched."
  type = list(object({
    name            = string
    mode            = optional(string, "observe")
    node_role_arns  = optional(list(string), [])
    eks_cluster_arn = optional(string)
    zonal_shift     = optional(bool, false)
    adopt           = optional(bool, false)
  }))
  default = []

  validation {
    condition = alltrue([
      for own in var.cluster_rights : can(regex("^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$", own.name))
    ])
    error_message = "The name of a cluster must be a non-empty, valid Kubernetes label value."
  }
  validation {
    condition     = length(distinct(var.cluster_rights[*].name)) == length(var.cluster_rights)
    error_message = "Cluster names must be unique. Otherwise permissions for one cluster would apply to both."
  }
  validation {
    condition     = alltrue([for own in var.cluster_rights : contains(["observe", "manage"], own.mode)])
    error_message = "The mode of a cluster must be `observe` or `manage`."
  }
  validation {
    condition     = alltrue([for own in var.cluster_rights : own.mode == "observe" || length(own.node_role_arns) > 0])
    error_message = "A managed cluster requires at least one node role."
  }
  # With a wildcard, the daemon could pass other roles to instances.
  validation {
    condition = alltrue([
      for arn in flatten(var.cluster_rights[*].node_role_arns) : can(regex("^arn:[^:]+:iam::[0-9]{12}:role/[^*?]+$", arn))
    ])
    error_message = "A node role must be given by its ARN, without wildcards."
  }
  validation {
    condition = alltrue([
      for arn in compact(var.cluster_rights[*].eks_cluster_arn) :
      can(regex("^arn:[^:]+:eks:[^:]+:[0-9]{12}:cluster/[^*?]+$", arn))
    ])
    error_message = "eks_cluster_arn must be the ARN of an EKS cluster, without wildcards."
  }
}

variable "manage_instance_profiles" {
  description = "Outrigger creates instance profiles for the roles of node classes. Set to false if node classes set `instance_profile`."
  type        = bool
  default     = false
}

variable "queue_arns" {
  description = "ARNs of the interruption queues."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.queue_arns : can(regex("^arn:[^:]+:sqs:[^:]+:[0-9]{12}:[^*?]+$", arn))])
    error_message = "A queue must be given by its ARN, without wildcards."
  }
}

variable "queue_key_arns" {
  description = "ARNs of your own KMS keys of these queues."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.queue_key_arns : can(regex("^arn:[^:]+:kms:[^:]+:[0-9]{12}:key/[^*?]+$", arn))])
    error_message = "A key must be given by its ARN, without wildcards. The ARN of an alias grants no permissions."
  }
}

variable "ssm_parameter_arns" {
  description = "ARNs of SSM parameters in addition to the public ones of AWS: image IDs and join tokens of node classes."
  type        = list(string)
  default     = []

  validation {
    condition = alltrue([
      for arn in var.ssm_parameter_arns : can(regex("^arn:[^:]+:ssm:[^:]+:[0-9]{12}:parameter/[^*?]", arn))
    ])
    error_message = "A parameter must be given by its ARN, which may have a wildcard only at its end."
  }
}

variable "ssm_parameter_key_arns" {
  description = "ARNs of your own KMS keys of `ssm_parameter_arns`, for parameters of type SecureString."
  type        = list(string)
  default     = []

  validation {
    condition = alltrue([
      for arn in var.ssm_parameter_key_arns : can(regex("^arn:[^:]+:kms:[^:]+:[0-9]{12}:key/[^*?]+$", arn))
    ])
    error_message = "A key must be given by its ARN, without wildcards. The ARN of an alias grants no permissions."
  }
}

variable "mode" {
  description = "Permissions of the daemon in the cluster: read-only with `observe`, read and write with `manage`."
  type        = string
  default     = "observe"

  validation {
    condition     = contains(["observe", "manage"], var.mode)
    error_message = "mode must be `observe` or `manage`."
  }
}

variable "group" {
  description = "Kubernetes group to which the roles in the cluster are bound."
  type        = string
  default     = "outrigger"

  validation {
    condition     = length(var.group) > 0 && !can(regex("^(system|eks|aws|amazon|iam):", var.group))
    error_message = "group must not be empty or have a prefix that Kubernetes or EKS reserve: `system:`, `eks:`, `aws:`, `amazon:` or `iam:`."
  }
}

variable "user" {
  description = "Kubernetes user of the daemon. The FlowSchemas match the requests of this user."
  type        = string
  default     = "outrigger"

  validation {
    condition = (
      length(var.user) > 0 && var.user != "*" && !can(regex("^system:", replace(var.user, "/^system:serviceaccount:/", "")))
    )
    error_message = "user must be a single user: not `*`, and no `system:` user except a ServiceAccount."
  }
}

variable "lease_name" {
  description = "Name of the Lease in kube-system, the same as in the `leader_election` block of the cluster."
  type        = string
  default     = "outrigger"

  validation {
    condition     = can(regex("^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", var.lease_name))
    error_message = "lease_name must consist of lowercase letters, digits, hyphens and dots, like `outrigger`."
  }
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

variable "bootstrap_tokens" {
  description = "Grant permission to create Secrets in kube-system, for `mint` of `bootstrap` blocks. Not needed for EKS."
  type        = bool
  default     = false
}

variable "simulated_nodes" {
  description = "Grant the permissions of a kubelet, for clusters with a `simulated` block. Not needed for EC2."
  type        = bool
  default     = false
}

variable "queue_name" {
  description = "Name of the queue, and name prefix of its EventBridge rules."
  type        = string
  default     = "outrigger"

  validation {
    condition     = can(regex("^[-A-Za-z0-9_]{1,39}$", var.queue_name))
    error_message = "The queue name must consist of at most 39 letters, digits, hyphens and underscores. The rule names add up to 25 characters to it, and EventBridge allows 64."
  }
}

variable "assume_role_arns" {
  description = "Roles of other accounts that the daemon may assume: the `role_arn` of clusters."
  type        = list(string)
  default     = []

  validation {
    condition = alltrue([
      for arn in var.assume_role_arns : can(regex("^arn:[^:]+:iam::[0-9]{12}:role/[^*?]+$", arn))
    ])
    error_message = "A role must be given by its ARN, without wildcards."
  }
}

variable "trusted_role_arns" {
  description = "Roles that may assume the daemon's role from another account."
  type        = list(string)
  default     = []

  validation {
    condition = alltrue([
      for arn in var.trusted_role_arns : can(regex("^arn:[^:]+:iam::[0-9]{12}:role/[^*?]+$", arn))
    ])
    error_message = "A role must be given by its ARN, without wildcards. A whole account cannot be trusted."
  }
}

variable "external_id" {
  description = "External ID that `trusted_role_arns` must send: the `external_id` of clusters."
  type        = string
  default     = null

  validation {
    condition     = var.external_id == null ? true : can(regex("^[A-Za-z0-9_+=,.@:/-]{2,}$", var.external_id)) && length(var.external_id) <= 1224
    error_message = "external_id must have 2 to 1,224 letters, digits and characters of _+=,.@:/-."
  }
}

variable "clusters" {
  description = "Clusters of the configuration, by name. A cluster without a `kubeconfig` is an EKS cluster."
  type = map(object({
    region           = string
    mode             = optional(string, "observe")
    eks_name         = optional(string)
    endpoint         = optional(string)
    ca               = optional(string)
    service_cidr     = optional(string)
    kubeconfig       = optional(map(string))
    role_arn         = optional(string)
    external_id      = optional(string)
    queue            = optional(string)
    lease_name       = optional(string)
    zonal_shift      = optional(bool, false)
    adopt            = optional(bool)
    tags             = optional(map(string), {})
    instance_profile = optional(string)
    node_role        = optional(string)
  }))
  default = {}

  validation {
    condition = alltrue([
      for name in keys(var.clusters) : can(regex("^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$", name))
    ])
    error_message = "The name of a cluster must be a non-empty, valid Kubernetes label value."
  }
  validation {
    condition     = alltrue([for own in values(var.clusters) : contains(["observe", "manage"], own.mode)])
    error_message = "The mode of a cluster must be `observe` or `manage`."
  }
  validation {
    condition = alltrue(flatten([
      for own in values(var.clusters) : [
        for key in keys(coalesce(own.kubeconfig, { path = "" })) : contains(["path", "context"], key)
      ]
    ]))
    error_message = "kubeconfig may have only `path` and `context`."
  }
  # The values become HCL strings: a value must not end the string or start an expression.
  validation {
    condition     = !can(regex("[$%]\\{|\\\\[^\"u]", jsonencode(var.clusters)))
    error_message = "The values of a cluster must not contain a backslash, a line break or a template."
  }
}

variable "cluster_blocks" {
  description = "Write `cluster` blocks to `configuration`. Set to false to write them in your own file, with `for_each = local.clusters`."
  type        = bool
  default     = true
}

variable "ssm_path" {
  description = "Path of `ssm_parameters`. If set, `configuration` reads `local.clusters` from these parameters with `data \"terraform_output\"`, and has no `cluster` blocks."
  type        = string
  default     = null

  validation {
    condition     = var.ssm_path == null ? true : can(regex("^(/[A-Za-z0-9_.-]+)+$", var.ssm_path))
    error_message = "ssm_path must be like `/outrigger/platform/outputs`."
  }
}
