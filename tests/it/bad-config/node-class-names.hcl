cluster "demo" {
  simulated {}
}

node_class "general" {
  role             = "arn:aws:iam::123456789012:role/team/node"
  instance_profile = ""
  context          = ""
  ip_prefix_count  = -1
  reserved_enis    = -1
  ami_family       = ""
}

pool "general" {
  node_class = node_class.general
}
