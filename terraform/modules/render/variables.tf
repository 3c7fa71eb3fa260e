variable "installation" {
  description = "Name of the installation, as `outrigger { installation = … }` says it: only what carries it as a tag is ever touched."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$", var.installation))
    error_message = "The installation has a name, as Kubernetes takes it for a label's value: nothing else tells its instances from others."
  }
}

variable "partition" {
  description = "Partition of AWS, such as `aws`, `aws-cn` or `aws-us-gov`."
  type        = string
  default     = "aws"

  validation {
    condition     = can(regex("^aws(-[a-z]+)*$", var.partition))
    error_message = "A partition is called like `aws-cn`."
  }
}

variable "region" {
  description = "Region of the instances and of the queue; `policy` and `queue_policy` need it."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^([a-z]+(-[a-z]+)+-[0-9]+)?$", var.region))
    error_message = "A region is called like `eu-central-1`."
  }
}

variable "account_id" {
  description = "Account of the instances and of the queue; `policy` and `queue_policy` need it."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^([0-9]{12})?$", var.account_id))
    error_message = "An account id has twelve digits."
  }
}

variable "cluster_rights" {
  description = "Clusters of the account and region, which `policy` is for: their name to Outrigger, whether they are managed, the roles of their nodes, their ARN in EKS, whether their zonal shifts are heeded, and whether nodes that Karpenter has made are taken over."
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
    error_message = "A cluster is called as Kubernetes takes it for a label's value."
  }
  validation {
    condition     = length(distinct(var.cluster_rights[*].name)) == length(var.cluster_rights)
    error_message = "No two clusters have one name: what is granted for one would be for both."
  }
  validation {
    condition     = alltrue([for own in var.cluster_rights : contains(["observe", "manage"], own.mode)])
    error_message = "The mode of a cluster is `observe` or `manage`."
  }
  validation {
    condition     = alltrue([for own in var.cluster_rights : own.mode == "observe" || length(own.node_role_arns) > 0])
    error_message = "Nodes of a managed cluster have a role: name at least one."
  }
  # Any other role would be given to instances as well.
  validation {
    condition = alltrue([
      for arn in flatten(var.cluster_rights[*].node_role_arns) : can(regex("^arn:[^:]+:iam::[0-9]{12}:role/[^*?]+$", arn))
    ])
    error_message = "The role of nodes is given by its ARN, without wildcards."
  }
  validation {
    condition = alltrue([
      for arn in compact(var.cluster_rights[*].eks_cluster_arn) :
      can(regex("^arn:[^:]+:eks:[^:]+:[0-9]{12}:cluster/[^*?]+$", arn))
    ])
    error_message = "A cluster of EKS is given by its ARN, without wildcards."
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

  validation {
    condition     = alltrue([for arn in var.queue_arns : can(regex("^arn:[^:]+:sqs:[^:]+:[0-9]{12}:[^*?]+$", arn))])
    error_message = "A queue is given by its ARN, without wildcards."
  }
}

variable "queue_key_arns" {
  description = "Keys of your own that these queues are encrypted with."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.queue_key_arns : can(regex("^arn:[^:]+:kms:[^:]+:[0-9]{12}:key/[^*?]+$", arn))])
    error_message = "A key is given by its ARN, without wildcards; that of an alias grants nothing."
  }
}

variable "ssm_parameter_arns" {
  description = "SSM parameters beyond those of AWS: image ids and join tokens that node classes name."
  type        = list(string)
  default     = []

  validation {
    condition = alltrue([
      for arn in var.ssm_parameter_arns : can(regex("^arn:[^:]+:ssm:[^:]+:[0-9]{12}:parameter/[^*?]", arn))
    ])
    error_message = "A parameter is given by its ARN, of which only the end may be a wildcard."
  }
}

variable "mode" {
  description = "What the daemon may do in the cluster: `observe`, read, or `manage`, change as well."
  type        = string
  default     = "observe"

  validation {
    condition     = contains(["observe", "manage"], var.mode)
    error_message = "The mode is `observe` or `manage`."
  }
}

variable "group" {
  description = "Group that the rights in the cluster are bound to."
  type        = string
  default     = "outrigger"

  validation {
    condition     = length(var.group) > 0 && !can(regex("^(system|eks|aws|amazon|iam):", var.group))
    error_message = "The group is one of your own: Kubernetes and EKS keep those that begin with `system:` and the like."
  }
}

variable "user" {
  description = "User that the daemon is to the API server, whose requests the FlowSchemas rank."
  type        = string
  default     = "outrigger"

  validation {
    condition = (
      length(var.user) > 0 && var.user != "*" && !can(regex("^system:", replace(var.user, "/^system:serviceaccount:/", "")))
    )
    error_message = "The user is the daemon alone, and none of Kubernetes' own but a ServiceAccount."
  }
}

variable "lease_name" {
  description = "Name of the Lease in kube-system, as the `leader_election` block of the cluster says it."
  type        = string
  default     = "outrigger"

  validation {
    condition     = can(regex("^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", var.lease_name))
    error_message = "A Lease is called like `outrigger`: small letters, digits, hyphens and dots."
  }
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

variable "bootstrap_tokens" {
  description = "Right to make Secrets in kube-system, for `mint` of `bootstrap` blocks: not for EKS."
  type        = bool
  default     = false
}

variable "simulated_nodes" {
  description = "Rights of a kubelet, for clusters with a `simulated` block: not for EC2."
  type        = bool
  default     = false
}

variable "queue_name" {
  description = "Name of the queue, with which the names of its rules begin."
  type        = string
  default     = "outrigger"

  validation {
    condition     = can(regex("^[-A-Za-z0-9_]{1,39}$", var.queue_name))
    error_message = "A queue has a name of letters, digits, hyphens and underscores, 39 at most: those of its rules, which have 64, are longer by up to 25."
  }
}

variable "assume_role_arns" {
  description = "Roles of other accounts that the daemon may assume: `role_arn` of clusters."
  type        = list(string)
  default     = []

  validation {
    condition = alltrue([
      for arn in var.assume_role_arns : can(regex("^arn:[^:]+:iam::[0-9]{12}:role/[^*?]+$", arn))
    ])
    error_message = "A role is given by its ARN, without wildcards."
  }
}

variable "trusted_role_arns" {
  description = "Roles that may assume the daemon's role of another account."
  type        = list(string)
  default     = []

  validation {
    condition = alltrue([
      for arn in var.trusted_role_arns : can(regex("^arn:[^:]+:iam::[0-9]{12}:role/[^*?]+$", arn))
    ])
    error_message = "A role is given by its ARN, without wildcards: a whole account is not trusted."
  }
}

variable "clusters" {
  description = "Clusters of the configuration, by name: EKS clusters, unless they have a `kubeconfig`."
  type = map(object({
    region           = string
    mode             = optional(string, "observe")
    eks_name         = optional(string)
    endpoint         = optional(string)
    ca               = optional(string)
    service_cidr     = optional(string)
    kubeconfig       = optional(map(string))
    role_arn         = optional(string)
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
    error_message = "A cluster is called as Kubernetes takes it for a label's value."
  }
  validation {
    condition     = alltrue([for own in values(var.clusters) : contains(["observe", "manage"], own.mode)])
    error_message = "The mode of a cluster is `observe` or `manage`."
  }
  validation {
    condition = alltrue(flatten([
      for own in values(var.clusters) : [
        for key in keys(coalesce(own.kubeconfig, { path = "" })) : contains(["path", "context"], key)
      ]
    ]))
    error_message = "A kubeconfig has a `path` and a `context`."
  }
  # They stand in a text of HCL: none may end its quotation or begin an expression.
  validation {
    condition     = !can(regex("[$%]\\{|\\\\[^\"u]", jsonencode(var.clusters)))
    error_message = "No value of a cluster has a backslash, a line break or a template in it."
  }
}

variable "cluster_blocks" {
  description = "Whether `configuration` has `cluster` blocks; false leaves them to a file of yours, with `for_each = local.clusters`."
  type        = bool
  default     = true
}

variable "ssm_path" {
  description = "Where `configuration` reads `local.clusters` from, by `data \"terraform_output\"`, in place of saying it: the path of `ssm_parameters`. It has no `cluster` blocks then."
  type        = string
  default     = null

  validation {
    condition     = var.ssm_path == null ? true : can(regex("^(/[A-Za-z0-9_.-]+)+$", var.ssm_path))
    error_message = "A path is like `/outrigger/platform/outputs`."
  }
}
