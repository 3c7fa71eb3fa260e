output "role_arn" {
  description = "ARN of the role, for access entries and for `role_arn` of clusters."
  value       = aws_iam_role.this.arn
}

output "role_name" {
  description = "Name of the role."
  value       = aws_iam_role.this.name
}

output "instance_profile_name" {
  description = "Name of the instance profile of the host. Null if the role is assumed from another account."
  value       = one(aws_iam_instance_profile.this[*].name)
}

output "policy_arns" {
  description = "ARNs of the policies, by region."
  value       = { for region, own in aws_iam_policy.region : region => own.arn }
}
