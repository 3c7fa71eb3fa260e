outrigger {
  installation = "it"
}

cluster "prod" {
  region = "eu-central-1"
  mode   = "manage"
  tags   = { for i in range(20) : "a${i}" => "v" }
  eks {}
}

node_class "general" {
  role = "node"
  tags = { for i in range(20) : "b${i}" => "v" }
  ami { alias = "al2023@latest" }
  subnet { id = "subnet-1" }
  security_group { id = "sg-1" }
}

pool "general" {
  node_class = node_class.general
}
