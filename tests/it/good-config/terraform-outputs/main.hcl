# var environment=prod
# Clusters that Terraform has made, by its outputs and by a state.
outrigger { installation = "acme" }

variable "environment" { type = string }

data "terraform_output" "platform" {
  file = "${var.environment}.json"
}

locals {
  clusters = data.terraform_output.platform.clusters
}

cluster "fleet" {
  for_each = local.clusters
  name     = each.key
  region   = each.value.region
  eks {
    endpoint = each.value.endpoint
    ca_data  = each.value.ca
  }
  tags = { Team = data.terraform_output.network.team }
}
