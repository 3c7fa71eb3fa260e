variable "name" {
  description = "Name of the host, and of what belongs to it."
  type        = string
  default     = "outrigger"

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", var.name))
    error_message = "A host has a name of letters, digits, dots, hyphens and underscores, 100 at most."
  }
}

variable "region" {
  description = "Region of the host; that of the provider if missing."
  type        = string
  default     = null
}

variable "host_count" {
  description = "How many hosts: 1, several of which one leads each cluster and the others follow, or 0 to stop."
  type        = number
  default     = 1

  validation {
    condition     = var.host_count >= 0 && floor(var.host_count) == var.host_count
    error_message = "Hosts are counted in whole numbers, from 0."
  }
}

variable "vpc_id" {
  description = "VPC of the host."
  type        = string
}

variable "subnet_ids" {
  description = "Subnets of the host: private ones, with a way to AWS and to the APIs of clusters."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) > 0
    error_message = "The host is in some subnet."
  }
}

variable "instance_profile_name" {
  description = "Instance profile of the daemon, which the module iam makes."
  type        = string
}

variable "instance_type" {
  description = "Type of the instance."
  type        = string
  default     = "t4g.small"
}

variable "ami_ssm_parameter" {
  description = "SSM parameter with the image: Amazon Linux 2023 of the type's architecture."
  type        = string
  default     = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-arm64"
}

variable "ami_id" {
  description = "Image, in place of `ami_ssm_parameter`."
  type        = string
  default     = null
}

variable "root_device_name" {
  description = "Root device of the image."
  type        = string
  default     = "/dev/xvda"
}

variable "root_volume_size" {
  description = "Size of the root volume, in GiB."
  type        = number
  default     = 10
}

variable "kms_key_id" {
  description = "Key that the root volume is encrypted with, which the service-linked role of Auto Scaling may use; that of the account if missing."
  type        = string
  default     = null
}

variable "package" {
  description = "The package, `.rpm` or `.deb`: an `https://` or `s3://` URL, or a path in the image."
  type        = string

  validation {
    condition     = can(regex("^(https://|s3://|/)[-A-Za-z0-9._~/%+=?&:@]+$", var.package))
    error_message = "The package is an https:// or s3:// URL, or an absolute path."
  }
}

variable "package_sha256" {
  description = "Checksum of the package; needed where it is fetched."
  type        = string
  default     = null

  validation {
    condition     = var.package_sha256 == null ? true : can(regex("^[0-9a-f]{64}$", var.package_sha256))
    error_message = "A checksum has 64 hexadecimal digits."
  }
}

variable "configuration" {
  description = "Files of the configuration, by name: they are written to /etc/outrigger.d. Secrets do not belong there."
  type        = map(string)

  validation {
    condition     = alltrue([for name in keys(var.configuration) : can(regex("^[A-Za-z0-9][-A-Za-z0-9_.]*\\.hcl(\\.json)?$", name))])
    error_message = "A file of the configuration is called like `pools.hcl`."
  }
}

variable "egress_ports" {
  description = "Ports that the host may reach: 443, and those of clusters outside of EKS."
  type        = set(number)
  default     = [443]

  validation {
    condition     = alltrue([for port in var.egress_ports : port >= 1 && port <= 65535 && floor(port) == port])
    error_message = "A port is a number from 1 to 65535."
  }
}

variable "egress_cidrs" {
  description = "Addresses that the host may reach."
  type        = set(string)
  default     = ["0.0.0.0/0"]

  validation {
    condition     = alltrue([for cidr in var.egress_cidrs : can(cidrhost(cidr, 0))])
    error_message = "Addresses are given like `10.0.0.0/8`."
  }
}

variable "cluster_security_group_ids" {
  description = "Security groups of private cluster APIs in this VPC, or peers of it, by any name: each lets the host in."
  type        = map(string)
  default     = {}
}

variable "tags" {
  description = "Tags of everything made here."
  type        = map(string)
  default     = {}
}
