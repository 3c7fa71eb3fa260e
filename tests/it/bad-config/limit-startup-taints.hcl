outrigger {
  installation = "example"
}

cluster "demo" {
  simulated {}
}

pool "general" {
  startup_taint "startup.example.com/one-agent-with-a-name-that-is-long-enough" {
    value  = "waits-for-the-agent-of-the-network"
    effect = "NoSchedule"
  }
  startup_taint "startup.example.com/two-agents-with-a-name-that-is-long-enough" {
    value  = "waits-for-the-agent-of-the-storage"
    effect = "NoSchedule"
  }
  startup_taint "startup.example.com/three-agents-with-names-that-are-long" {
    value  = "waits-for-the-agent-of-the-secrets"
    effect = "NoSchedule"
  }
}
