outrigger {
  installation     = "platform"
  required_version = "~> 0.1"
}

variable "environment" {
  type    = string
  default = "dev"
  validation {
    condition     = contains(["dev", "prod"], var.environment)
    error_message = "environment must be dev or prod."
  }
}

variable "clusters" {
  type = map(object({ region = string, manage = optional(bool, false) }))
}

cluster "fleet" {
  for_each = var.clusters
  region   = each.value.region
  mode     = each.value.manage ? "manage" : "observe"
  tags     = { Environment = var.environment }
  kubeconfig {
    path    = "kubeconfig"
    context = each.key
  }
}

node_class "general" {
  for_each  = var.clusters
  clusters  = [each.key]
  role      = "node-${each.key}"
  user_data = file("userdata/common.sh")
  ami { alias = "al2@latest" }
  subnet { tags = { Cluster = each.key } }
  security_group { tags = { Cluster = each.key } }
}

pool "everywhere" {
  node_class = node_class.general
}
