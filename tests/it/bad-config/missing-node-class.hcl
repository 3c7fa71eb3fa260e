cluster "prod" {
  region = "eu-central-1"
}

pool "general" {}
