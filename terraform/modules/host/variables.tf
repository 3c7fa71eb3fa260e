variable "name" {
  description = "Name of the host and its resources."
  type        = string
  default     = "outrigger"

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", var.name))
    error_message = "name must consist of at most 100 letters, digits, dots, hyphens and underscores."
  }
}

variable "region" {
  description = "Region of the host. Defaults to the region of the provider."
  type        = string
  default     = null
}

variable "host_count" {
  description = "Number of hosts. With more than one, one host leads each cluster and the others are on standby. 0 stops Outrigger."
  type        = number
  default     = 1

  validation {
    condition     = var.host_count >= 0 && floor(var.host_count) == var.host_count
    error_message = "host_count must be a whole number, zero or greater."
  }
}

variable "vpc_id" {
  description = "VPC of the host."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets of the host, with routes to AWS and to the API servers of the clusters."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) > 0
    error_message = "subnet_ids must have at least one subnet."
  }
}

variable "instance_profile_name" {
  description = "Instance profile of the daemon. The module iam creates it."
  type        = string
}

variable "instance_type" {
  description = "Instance type of the host."
  type        = string
  default     = "t4g.small"
}

variable "ami_ssm_parameter" {
  description = "SSM parameter with the AMI ID: Amazon Linux 2023 for the architecture of the instance type."
  type        = string
  default     = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-arm64"
}

variable "ami_id" {
  description = "AMI ID, instead of `ami_ssm_parameter`."
  type        = string
  default     = null
}

variable "root_device_name" {
  description = "Root device name of the image."
  type        = string
  default     = "/dev/xvda"
}

variable "root_volume_size" {
  description = "Size of the root volume, in GiB."
  type        = number
  default     = 10
}

variable "kms_key_id" {
  description = "KMS key of the root volume. The service-linked role of Auto Scaling must be allowed to use it. Defaults to the EBS key of the account."
  type        = string
  default     = null
}

variable "package" {
  description = "Outrigger package, `.rpm` or `.deb`: an `https://` or `s3://` URL, or a path in the image."
  type        = string

  validation {
    condition     = can(regex("^(https://|s3://|/)[-A-Za-z0-9._~/%+=?&:@]+$", var.package))
    error_message = "package must be an https:// or s3:// URL, or an absolute path."
  }
}

variable "package_sha256" {
  description = "SHA-256 checksum of the package. Required if `package` is a URL."
  type        = string
  default     = null

  validation {
    condition     = var.package_sha256 == null ? true : can(regex("^[0-9a-f]{64}$", var.package_sha256))
    error_message = "package_sha256 must have 64 hexadecimal digits."
  }
}

variable "configuration" {
  description = "Configuration files for /etc/outrigger.d, by file name. Do not put secrets into them."
  type        = map(string)

  validation {
    condition     = alltrue([for name in keys(var.configuration) : can(regex("^[A-Za-z0-9][-A-Za-z0-9_.]*\\.hcl(\\.json)?$", name))])
    error_message = "The name of a configuration file must be like `pools.hcl`."
  }
}

variable "egress_ports" {
  description = "Outbound ports of the host: 443, and the API ports of clusters outside EKS."
  type        = set(number)
  default     = [443]

  validation {
    condition     = alltrue([for port in var.egress_ports : port >= 1 && port <= 65535 && floor(port) == port])
    error_message = "A port must be a number from 1 to 65535."
  }
}

variable "egress_cidrs" {
  description = "CIDR blocks that the host may connect to."
  type        = set(string)
  default     = ["0.0.0.0/0"]

  validation {
    condition     = alltrue([for cidr in var.egress_cidrs : can(cidrhost(cidr, 0))])
    error_message = "A CIDR block must be like `10.0.0.0/8`."
  }
}

variable "cluster_security_group_ids" {
  description = "Security groups of private cluster API endpoints in this VPC or peered VPCs, by any key. Each gets an ingress rule for the host."
  type        = map(string)
  default     = {}
}

variable "tags" {
  description = "Tags of all created resources."
  type        = map(string)
  default     = {}
}
