cluster "demo" {
  simulated {}
}

locals {
  sizes = ["small", "large"]
}

pool "general" {
  labels = {
    size  = upper(join("-", [local.sizes[0], local.sizes[2]]))
    count = 1 + "two"
    team  = true ? local.sizes.first : "x"
  }
}
