output "policy" {
  description = "The policy of the daemon, as JSON: everything it ever asks of AWS, and nothing else."
  value       = jsonencode({ Version = "2012-10-17", Statement = local.statements })
}
