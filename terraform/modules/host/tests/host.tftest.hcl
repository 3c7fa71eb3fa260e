# Requires Terraform 1.7 and the provider schema, but no AWS account.

mock_provider "aws" {}

variables {
  vpc_id                = "vpc-1"
  subnet_ids            = ["subnet-1"]
  instance_profile_name = "outrigger"
  package               = "https://packages.example/outrigger.rpm"
  package_sha256        = "0000000000000000000000000000000000000000000000000000000000000000"
  configuration         = { "outrigger.hcl" = "outrigger {}\n" }
}

run "closed" {
  command = plan

  assert {
    condition = (
      aws_launch_template.this.metadata_options[0].http_tokens == "required" &&
      aws_launch_template.this.metadata_options[0].http_put_response_hop_limit == 1
    )
    error_message = "The instance metadata requires tokens and has a hop limit of one."
  }
  assert {
    condition     = length(aws_vpc_security_group_ingress_rule.cluster) == 0
    error_message = "The security group has no inbound rules."
  }
}

run "no_checksum" {
  command = plan

  variables {
    package_sha256 = null
  }

  expect_failures = [aws_launch_template.this]
}

run "no_package" {
  command = plan

  variables {
    package = "outrigger.rpm"
  }

  expect_failures = [var.package]
}

run "no_hcl" {
  command = plan

  variables {
    configuration = { "../passwd" = "" }
  }

  expect_failures = [var.configuration]
}

run "no_address" {
  command = plan

  variables {
    egress_cidrs = ["anywhere"]
  }

  expect_failures = [var.egress_cidrs]
}

run "no_port" {
  command = plan

  variables {
    egress_ports = [0]
  }

  expect_failures = [var.egress_ports]
}

run "one_by_one" {
  command = plan

  variables {
    host_count = 2
  }

  assert {
    condition     = aws_autoscaling_group.this.instance_refresh[0].preferences[0].min_healthy_percentage == 50
    error_message = "Of two hosts, one keeps running while the other is replaced."
  }
}

run "three" {
  command = plan

  variables {
    host_count = 3
  }

  assert {
    condition     = aws_autoscaling_group.this.max_size == 3
    error_message = "More than two hosts are allowed."
  }
}

run "half_a_host" {
  command = plan

  variables {
    host_count = 1.5
  }

  expect_failures = [var.host_count]
}
