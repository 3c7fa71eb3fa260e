cluster "demo" {
  simulated {}
}

node_class "general" {
  user_data = "#!/bin/sh"
  bootstrap "custom" {
    machine_config_file = "worker.yaml"
  }
}

pool "general" {
  node_class = node_class.general
}
