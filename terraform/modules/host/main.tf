# The management host. It has no state except its configuration, so it can be replaced at any time. It
# accepts no connections. It connects to AWS and to the API servers of the clusters.

locals {
  is_remote = !startswith(var.package, "/")

  user_data = templatefile("${path.module}/user_data.sh.tftpl", {
    package        = var.package
    package_sha256 = coalesce(var.package_sha256, "-")
    is_remote      = local.is_remote
    files          = { for name, text in var.configuration : name => base64gzip(text) }
  })
}

resource "aws_security_group" "this" {
  region      = var.region
  name_prefix = "${var.name}-"
  description = "Outrigger: nothing in, HTTPS out"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = var.name })

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_egress_rule" "this" {
  for_each = {
    for own in setproduct(var.egress_ports, var.egress_cidrs) : "${own[0]}-${own[1]}" => { port = own[0], cidr = own[1] }
  }

  region            = var.region
  security_group_id = aws_security_group.this.id
  description       = "AWS and the API servers of clusters"
  ip_protocol       = "tcp"
  from_port         = each.value.port
  to_port           = each.value.port
  cidr_ipv4         = strcontains(each.value.cidr, ":") ? null : each.value.cidr
  cidr_ipv6         = strcontains(each.value.cidr, ":") ? each.value.cidr : null
  tags              = var.tags
}

# Private API endpoints of clusters must allow connections from the host.
resource "aws_vpc_security_group_ingress_rule" "cluster" {
  for_each = var.cluster_security_group_ids

  region                       = var.region
  security_group_id            = each.value
  referenced_security_group_id = aws_security_group.this.id
  description                  = "Outrigger"
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
  tags                         = var.tags
}

resource "aws_launch_template" "this" {
  region                 = var.region
  name_prefix            = "${var.name}-"
  description            = "Management host of Outrigger"
  update_default_version = true
  image_id               = coalesce(var.ami_id, "resolve:ssm:${var.ami_ssm_parameter}")
  instance_type          = var.instance_type
  user_data              = base64encode(local.user_data)
  tags                   = var.tags

  iam_instance_profile {
    name = var.instance_profile_name
  }

  # Containers on the host, and forged requests without a token, cannot get the credentials of the role.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "disabled"
  }

  network_interfaces {
    associate_public_ip_address = false
    delete_on_termination       = true
    security_groups             = [aws_security_group.this.id]
  }

  block_device_mappings {
    device_name = var.root_device_name

    ebs {
      encrypted             = true
      kms_key_id            = var.kms_key_id
      volume_type           = "gp3"
      volume_size           = var.root_volume_size
      delete_on_termination = true
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume"])

    content {
      resource_type = tag_specifications.value
      tags          = merge(var.tags, { Name = var.name })
    }
  }

  lifecycle {
    create_before_destroy = true

    precondition {
      condition     = !local.is_remote || var.package_sha256 != null
      error_message = "A package from a URL requires a checksum. Set package_sha256."
    }
    precondition {
      condition     = length(base64encode(local.user_data)) <= 21848
      error_message = "The user data exceeds the EC2 limit of 16 KiB. Put the configuration into the image instead."
    }
  }
}

resource "aws_autoscaling_group" "this" {
  region              = var.region
  name                = var.name
  min_size            = var.host_count
  max_size            = var.host_count
  desired_capacity    = var.host_count
  vpc_zone_identifier = var.subnet_ids
  health_check_type   = "EC2"

  launch_template {
    id      = aws_launch_template.this.id
    version = aws_launch_template.this.latest_version
  }

  # A host is terminated before its replacement starts, so the number of hosts never exceeds host_count. With
  # several hosts, half of them keep running.
  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = var.host_count > 1 ? 50 : 0
      max_healthy_percentage = 100
    }
  }

  dynamic "tag" {
    for_each = merge(var.tags, { Name = var.name })

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }
}
