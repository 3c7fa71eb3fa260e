cluster "demo" {
  simulated {}
}

node_class "general" {
  user_data = file("userdata/common.sh")
  role      = regex("^node-(.*)$", "pool-a")[0]
  tags      = jsondecode("{\"a\": }")
}

pool "general" {
  node_class = node_class.general
  weight     = max(10, "many")
  labels     = { name = replace("a-b", "-"), number = tonumber("abc") }
}
