output "manifests" {
  description = "What each cluster has to be given, by its name."
  value       = { for name, own in module.cluster : name => own.manifests }
}
