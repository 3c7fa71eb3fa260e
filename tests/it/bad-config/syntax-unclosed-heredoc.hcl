cluster "demo" {
  simulated {}
}

node_class "general" {
  user_data = <<-EOT
    #!/bin/sh
    echo hello
  tags = {}
}
