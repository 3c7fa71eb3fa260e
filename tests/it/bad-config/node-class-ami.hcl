cluster "demo" {
  simulated {}
}

node_class "general" {
  ami {}
  ami { owner = "self" }
  ami { tags = {} }
  ami { tags = { "" = "a" } }
  ami {
    name = "*"
    tags = { a = "" }
  }
  ami { id = "my-ami-1" }
  ami { name = " " }
  ami {
    id            = "ami-1"
    ssm_parameter = "/a"
  }
  ami {
    id    = "ami-1"
    name  = "a"
    owner = "self"
    tags  = { a = "b" }
  }
}

pool "general" {
  node_class = node_class.general
}
