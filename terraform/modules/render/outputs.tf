output "policy" {
  description = "IAM policy of the daemon, as JSON: exactly the permissions that it uses. Read-only unless a cluster is managed. Null without `region` or `account_id`."
  value       = var.region == "" || var.account_id == "" ? null : local.policy

  precondition {
    condition     = length(local.policy) <= 6144
    error_message = "The policy has ${length(local.policy)} characters, and IAM allows 6,144 in a managed policy. Distribute the clusters of the region among several roles."
  }
}

output "decrypt_policy" {
  description = "IAM policy of the daemon for your own KMS keys, as JSON. Null without `queue_key_arns` and `ssm_parameter_key_arns`."
  value       = length(local.key_statements) == 0 ? null : jsonencode({ Version = "2012-10-17", Statement = local.key_statements })

  # Without parameters, the condition of the statement would be empty.
  precondition {
    condition     = length(var.ssm_parameter_key_arns) == 0 || length(var.ssm_parameter_arns) > 0
    error_message = "ssm_parameter_key_arns requires ssm_parameter_arns: the keys decrypt only these parameters."
  }
}

output "host_trust" {
  description = "Trust policy of the host's role, as JSON."
  value       = jsonencode(local.host_trust)
}

output "spoke_trust" {
  description = "Trust policy of the role that the daemon assumes in another account, as JSON. Null without `trusted_role_arns`."
  value       = length(var.trusted_role_arns) == 0 ? null : jsonencode(local.spoke_trust)
}

output "assume_policy" {
  description = "Policy that allows the daemon to assume roles of other accounts, as JSON. Null without `assume_role_arns`."
  value       = length(var.assume_role_arns) == 0 ? null : jsonencode(local.assume)
}

output "queue_policy" {
  description = "Policy of the queue, as JSON: only its EventBridge rules may send messages, and all requests must use TLS. Null without `region` or `account_id`."
  value       = var.region == "" || var.account_id == "" ? null : jsonencode(local.queue_policy)
}

output "queue_key_policy" {
  description = "Policy that your own KMS key must include, as JSON, so that the rules can send messages to the encrypted queue. Null without `region` or `account_id`."
  value       = var.region == "" || var.account_id == "" ? null : jsonencode(local.queue_key_policy)
}

output "event_rules" {
  description = "Names of the EventBridge rules, by the name of their pattern."
  value       = local.event_rules
}

output "event_patterns" {
  description = "Patterns of the events that the daemon handles, each as JSON, by name."
  value       = { for name, own in local.event_patterns : name => jsonencode(own) }
}

output "rbac" {
  description = "RBAC roles and bindings of the daemon in a cluster, as multi-document YAML."
  value       = join("---\n", [for own in local.roles : yamlencode(own)])
}

output "flow_schemas" {
  description = "FlowSchemas that set the priority of the daemon's requests, as multi-document YAML."
  value       = join("---\n", [for own in local.flow_schemas : yamlencode(own)])
}

output "configuration" {
  description = "Configuration file in HCL: `outrigger`, the `cluster` blocks, and `local.clusters`."
  value       = local.configuration
}

output "clusters" {
  description = "Value of `local.clusters` in the configuration: the values of each cluster, by name."
  value       = local.known
}

output "terraform_output" {
  description = "Value of `clusters` for an SSM parameter that `data \"terraform_output\"` reads, as JSON: `{ clusters = … }`."
  value       = jsonencode({ clusters = local.known })
}

output "ssm_parameters" {
  description = "Value of `clusters` split into 16 SSM parameters, by parameter name. They have room for about 200 clusters without `ca`. `configuration` merges them. Empty without `ssm_path`."
  value       = local.ssm_parameters

  precondition {
    condition     = alltrue([for own in values(local.ssm_parameters) : length(own) <= 8192])
    error_message = "The clusters of a parameter exceed the SSM limit of 8 KiB. Omit `ca`, which the daemon reads from EKS, or use a file."
  }
}
