cluster "fleet" {
  for_each = [{ name = "eu" }, { name = "us" }]
  name     = each.value.name
  simulated {}
}

cluster "other" {
  for_each = 3
  simulated {}
}
