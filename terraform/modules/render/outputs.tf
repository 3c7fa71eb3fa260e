output "policy" {
  description = "The policy of the daemon, as JSON: everything it ever asks of AWS, and nothing else. Null without `region`, `account_id` or `node_role_arns`."
  value = (
    var.region == "" || var.account_id == "" || length(var.node_role_arns) == 0
    ? null
    : jsonencode({ Version = "2012-10-17", Statement = local.statements })
  )
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
  description = "The policy of the queue, as JSON: rules of its account send, nobody does without TLS. Null without `region` or `account_id`."
  value       = var.region == "" || var.account_id == "" ? null : jsonencode(local.queue_policy)
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
