output "manifests" {
  description = "What each cluster has to be given, by its name."
  value       = { for name, own in module.cluster : name => own.manifests }
}

output "clusters" {
  description = "What is known of each cluster, for `data \"terraform_output\"`: `terraform output -json`."
  value       = module.configuration.clusters
}
