cluster "demo" {
  simulated {}
}

NodeOverlay "savings" {
}

CapacityBuffer "headroom" {
}
