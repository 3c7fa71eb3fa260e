outrigger {}

cluster "prod" {
  mode = "manage"
  simulated {}
  kubeconfig { path = "kubeconfig" }
}
