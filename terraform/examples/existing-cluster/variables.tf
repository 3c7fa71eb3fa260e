variable "installation" {
  description = "Name of the installation, the same on all its hosts."
  type        = string
  default     = "platform"
}

variable "region" {
  description = "Region of the host."
  type        = string
  default     = "eu-central-1"
}

variable "cluster_name" {
  description = "Name of the cluster in EKS."
  type        = string
}

variable "mode" {
  description = "Whether the cluster is only observed at first: `observe` or `manage`."
  type        = string
  default     = "observe"
}

variable "adopt" {
  description = "Whether nodes that Karpenter has made become Outrigger's once Karpenter is gone."
  type        = bool
  default     = null
}

variable "node_role_arn" {
  description = "Role of the nodes, which has an access entry."
  type        = string
}

variable "instance_profile_name" {
  description = "Instance profile with that role."
  type        = string
}

variable "vpc_id" {
  description = "VPC of the host."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets of the host, with a way to AWS and to the APIs of the clusters."
  type        = list(string)
}

variable "package" {
  description = "The package of Outrigger: an `https://` or `s3://` URL, or a path in the image."
  type        = string
}

variable "package_sha256" {
  description = "Checksum of the package; needed where it is fetched."
  type        = string
  default     = null
}
