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

variable "clusters" {
  description = "EKS clusters, by name: region, subnets of their nodes, whether they are managed or only observed, and whether nodes that Karpenter has made are taken over."
  type = map(object({
    region     = string
    subnet_ids = list(string)
    mode       = optional(string, "observe")
    adopt      = optional(bool)
  }))
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
