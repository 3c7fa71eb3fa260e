cluster "demo" {
  simulated {}
}

pool "general" {
  repair {
    condition = "KernelDeadlock"
    status    = "True"
    after     = "10m"
  }
  repair {
    condition = "KernelDeadlock"
    status    = "True"
    after     = "never"
  }
}
