output "manifests" {
  description = "Manifests for each cluster, by cluster name."
  value       = { for name, own in module.cluster : name => own.manifests }
}

output "clusters" {
  description = "Values of each cluster for `data \"terraform_output\"`: `terraform output -json`."
  value       = module.configuration.clusters
}
