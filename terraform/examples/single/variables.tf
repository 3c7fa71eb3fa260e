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
  description = "Name of the cluster."
  type        = string
  default     = "prod"
}

variable "kubernetes_version" {
  description = "Kubernetes version."
  type        = string
  default     = "1.34"
}

variable "vpc_id" {
  description = "VPC of the cluster and the host."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets of the cluster, its nodes and the host, in at least two zones, with a route to AWS."
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
