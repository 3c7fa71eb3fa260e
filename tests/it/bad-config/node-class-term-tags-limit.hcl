cluster "demo" {
  simulated {}
}

node_class "general" {
  subnet { tags = { for i in range(21) : "k${i}" => "v" } }
}

pool "general" {
  node_class = node_class.general
}
