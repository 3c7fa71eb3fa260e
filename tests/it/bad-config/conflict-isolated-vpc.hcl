outrigger { installation = "it" }

cluster "isolated" {
  region       = "us-gov-west-1"
  mode         = "manage"
  isolated_vpc = true
  eks {}
}

node_class "standard" {
  role = "nodes"
  ami { alias = "al2023@latest" }
  subnet { tags = { Name = "nodes" } }
  security_group { tags = { Name = "nodes" } }
}

pool "general" { node_class = node_class.standard }
