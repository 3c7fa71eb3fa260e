cluster "prod" {
  region = "eu-central-1"
}

cluster "lab" {
  region = "us-west-2"
}

node_class "general" {
  clusters = ["prod"]
}

pool "general" {
  node_class = node_class.general
}
