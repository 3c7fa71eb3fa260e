environment = "prod"
clusters = {
  eu-1 = { region = "eu-central-1", manage = true }
  us-1 = { region = "us-east-1" }
}
