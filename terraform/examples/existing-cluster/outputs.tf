output "manifests" {
  description = "What the cluster has to be given: `terraform output -raw manifests | kubectl apply -f -`."
  value       = module.cluster.manifests
}
