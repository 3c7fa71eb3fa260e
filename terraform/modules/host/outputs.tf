output "security_group_id" {
  description = "Security group of the host, for whatever has to let it in."
  value       = aws_security_group.this.id
}

output "autoscaling_group_name" {
  description = "Name of the Auto Scaling group."
  value       = aws_autoscaling_group.this.name
}

output "launch_template_id" {
  description = "Id of the launch template."
  value       = aws_launch_template.this.id
}
