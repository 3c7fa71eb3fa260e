cluster "fleet" {
  for_each = { eu = {}, us = {} }
  name     = "fleet"
  simulated {}
}
