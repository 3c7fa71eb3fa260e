cluster "fleet" {
  for_each = {
    eu = { region = "eu-central-1" }
    us = { regoin = "us-east-1" }
  }
  region = each.value.region
}
