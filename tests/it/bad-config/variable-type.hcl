# var count=many
# var zones=["a", "b"
cluster "demo" {
  simulated {}
}

variable "count" {
  type = number
}

variable "zones" {
  type = list(string)
}

variable "region" {
  type = object({ name = string, zones = optional(number, 3) })
  default = { nam = "eu" }
}

variable "owner" {
  nullable = false
  default  = null
}

pool "general" {
  weight      = var.count
  annotations = { a = var.owner, b = var.region.name, c = join(",", var.zones) }
}
