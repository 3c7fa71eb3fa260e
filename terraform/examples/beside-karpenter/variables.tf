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

variable "karpenter_node_role_arn" {
  description = "Role of the nodes that Karpenter launches. It must have an access entry."
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
