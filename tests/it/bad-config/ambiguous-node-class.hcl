cluster "fleet" {
  for_each = { eu = "eu-central-1", us = "us-east-1" }
  region   = each.value
}

node_class "general" {
  for_each = { eu = "role-eu", us = "role-us" }
  role     = each.value
}

pool "general" {
  node_class = node_class.general
}
