outrigger {
  installation = "it"
}

cluster "prod" {
  region = "eu-central-1"
  mode   = "manage"
  eks {}
}

cluster "lab" {
  region = "eu-central-1"
}

node_class "nothing" {}

node_class "little" {
  instance_profile = "node"
  ami { alias = "al2023@latest" }
  subnet { id = "subnet-1" }
}

pool "nothing" {
  node_class = node_class.nothing
}

pool "little" {
  node_class = node_class.little
}
