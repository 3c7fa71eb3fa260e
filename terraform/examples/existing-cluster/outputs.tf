output "manifests" {
  description = "Manifests for the cluster: `terraform output -raw manifests | kubectl apply -f -`."
  value       = module.cluster.manifests
}

output "clusters" {
  description = "Values of each cluster for `data \"terraform_output\"`: `terraform output -json`."
  value       = module.configuration.clusters
}
