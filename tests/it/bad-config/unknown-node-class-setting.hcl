cluster "demo" {
  simulated {}
}

node_class "general" {
  metadata_options {
    http_token = "required"
  }
}

pool "general" {
  node_class = node_class.general
}
