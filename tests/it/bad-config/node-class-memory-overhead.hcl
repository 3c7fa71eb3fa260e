cluster "demo" {
  simulated {}
}

node_class "general" {
  vm_memory_overhead_percent = 0.075
}

pool "general" {
  node_class = node_class.general
}
