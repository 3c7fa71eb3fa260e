cluster "demo" {
  simulated {}
}

variable "colour" {
  default = "red"
}

locals {
  shade = "dark"
}

node_class "spare" {}

schedule "night" {
  start    = "@daily"
  duration = "6h"
}
