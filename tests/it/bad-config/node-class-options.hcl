cluster "demo" {
  simulated {}
}

node_class "general" {
  metadata_options {
    http_endpoint               = "on"
    http_protocol_ipv6          = true
    http_put_response_hop_limit = 65
    http_tokens                 = "v2"
  }
  connection_tracking {
    tcp_established_timeout = "59s"
    udp_stream_timeout      = "181s"
    udp_timeout             = "61s"
  }
  cpu_options { nested_virtualization = true }
  instance_store_policy = "RAID1"
}

pool "general" {
  node_class = node_class.general
}
