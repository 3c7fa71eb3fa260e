cluster "demo" {
  simulated {}
}

node_class "general" {
  subnet {}
  subnet { id = "subnet-A" }
  subnet { tags = { a = "" } }
  subnet {
    id   = "subnet-1"
    tags = { a = "b" }
  }
  security_group {}
  security_group { id = "1" }
  security_group { tags = {} }
  security_group {
    id   = "sg-1"
    name = "nodes"
    tags = { a = "b" }
  }
  security_group {
    name = "nodes"
    tags = { a = "b" }
  }
}

pool "general" {
  node_class = node_class.general
}
