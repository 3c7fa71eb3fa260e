output "policy" {
  description = "The policy of the daemon, as JSON: everything it ever asks of AWS, and nothing else; only to read, unless a cluster is managed. Null without `region` or `account_id`."
  value       = var.region == "" || var.account_id == "" ? null : local.policy

  precondition {
    condition     = length(local.policy) <= 6144
    error_message = "A managed policy has 6,144 characters, and this one has ${length(local.policy)}: share the clusters of the region out between several roles."
  }
}

output "host_trust" {
  description = "The trust policy of the host's role, as JSON."
  value       = jsonencode(local.host_trust)
}

output "spoke_trust" {
  description = "The trust policy of the role that the daemon assumes in another account, as JSON. Null without `trusted_role_arns`."
  value       = length(var.trusted_role_arns) == 0 ? null : jsonencode(local.spoke_trust)
}

output "assume_policy" {
  description = "The policy by which the daemon assumes roles of other accounts, as JSON. Null without `assume_role_arns`."
  value       = length(var.assume_role_arns) == 0 ? null : jsonencode(local.assume)
}

output "queue_policy" {
  description = "The policy of the queue, as JSON: its rules send, and nobody does without TLS. Null without `region` or `account_id`."
  value       = var.region == "" || var.account_id == "" ? null : jsonencode(local.queue_policy)
}

output "queue_key_policy" {
  description = "What the policy of a key of your own has to say, as JSON, so that these rules send to a queue that is encrypted with it. Null without `region` or `account_id`."
  value       = var.region == "" || var.account_id == "" ? null : jsonencode(local.queue_key_policy)
}

output "event_rules" {
  description = "Names of the rules, by name of their pattern."
  value       = local.event_rules
}

output "event_patterns" {
  description = "Patterns of the events that the daemon understands, each as JSON, by name."
  value       = { for name, own in local.event_patterns : name => jsonencode(own) }
}

output "rbac" {
  description = "Roles and bindings of the daemon in a cluster, as YAML of several documents."
  value       = join("---\n", [for own in local.roles : yamlencode(own)])
}

output "flow_schemas" {
  description = "FlowSchemas that rank the daemon's requests, as YAML of several documents."
  value       = join("---\n", [for own in local.flow_schemas : yamlencode(own)])
}

output "configuration" {
  description = "A file of the configuration in HCL: `outrigger`, the `cluster` blocks, and `local.clusters`."
  value       = local.configuration
}

output "clusters" {
  description = "What `local.clusters` of the configuration is: what is known of each cluster, by name."
  value       = local.known
}

output "terraform_output" {
  description = "The same for an SSM parameter that `data \"terraform_output\"` reads, as JSON: `{ clusters = … }`."
  value       = jsonencode({ clusters = local.known })
}

output "ssm_parameters" {
  description = "The same shared out between 16 SSM parameters, by their names, for some 200 clusters without `ca`: `configuration` puts it together. None without `ssm_path`."
  value       = local.ssm_parameters

  precondition {
    condition     = alltrue([for own in values(local.ssm_parameters) : length(own) <= 8192])
    error_message = "A parameter has 8 KiB, which its clusters do not fit in: leave out `ca`, which EKS tells, or use a file."
  }
}
