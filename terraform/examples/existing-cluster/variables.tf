variable "installation" {
  description = "Name of the installation, identical on all its hosts."
  type        = string
  default     = "platform"
}

variable "region" {
  description = "Region of the host."
  type        = string
  default     = "eu-central-1"
}

variable "cluster_name" {
  description = "Name of the EKS cluster."
  type        = string
}

variable "mode" {
  description = "Mode of the cluster: `observe` or `manage`."
  type        = string
  default     = "observe"
}

variable "adopt" {
  description = "Adopt nodes that Karpenter launched, after Karpenter is removed."
  type        = bool
  default     = null
}

variable "node_role_arn" {
  description = "Role of the nodes. It must have an access entry."
  type        = string
}

variable "instance_profile_name" {
  description = "Instance profile with this role."
  type        = string
}

variable "vpc_id" {
  description = "VPC of the host."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets of the host, with routes to AWS and to the API servers of the clusters."
  type        = list(string)
}

variable "package" {
  description = "Outrigger package: an `https://` or `s3://` URL, or a path in the image."
  type        = string
}

variable "package_sha256" {
  description = "SHA-256 checksum of the package. Required if `package` is a URL."
  type        = string
  default     = null
}
