cluster "demo" {
  simulated {}
}

node_class "general" {
  user_data = templatefile("user-data.sh.tftpl", { name = "demo" })
}

pool "general" {
  node_class = node_class.general
}
