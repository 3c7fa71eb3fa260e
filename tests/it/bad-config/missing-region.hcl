cluster "prod" {
  kubeconfig { path = "kubeconfig" }
}
