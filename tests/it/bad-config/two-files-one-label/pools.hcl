# Moved here from main.hcl.
pool "general" {
  weight = 20
}
