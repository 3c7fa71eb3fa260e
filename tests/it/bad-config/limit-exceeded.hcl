cluster "demo" {
  simulated {}
}

locals {
  a = [for x in range(1000) : [for y in range(1000) : [for z in range(1000) : x * y * z]]]
}

pool "general" {
  weight = length(local.a)
}
