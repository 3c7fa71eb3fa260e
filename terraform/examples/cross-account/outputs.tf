output "manifests" {
  description = "What the cluster has to be given: `terraform output -raw manifests | kubectl apply -f -`."
  value       = module.cluster.manifests
}

output "clusters" {
  description = "What is known of each cluster, for `data \"terraform_output\"`: `terraform output -json`."
  value       = module.configuration.clusters
}
