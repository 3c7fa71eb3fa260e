variables {
  installation = "platform"
  clusters = {
    prod = {
      region           = "eu-central-1"
      mode             = "manage"
      queue            = "outrigger"
      lease_name       = "autoscaler"
      zonal_shift      = true
      instance_profile = "outrigger-prod"
      endpoint         = "https://prod.example"
      tags             = { Team = "platform" }
    }
    spoke = { region = "us-west-2", role_arn = "arn:aws:iam::210987654321:role/outrigger" }
    lab   = { region = "us-west-2", kubeconfig = { path = "/etc/outrigger/kubeconfig" } }
  }
}

run "blocks" {
  command = plan

  assert {
    condition = alltrue([
      for text in [
        "outrigger {\n  installation = \"platform\"\n}\n",
        "    \"prod\" = {\n      disable_dry_run  = false\n      endpoint         = \"https://prod.example\"\n",
        "cluster \"lab\" {\n  disable_dry_run = true\n  mode            = \"observe\"\n  region          = \"us-west-2\"\n  kubeconfig {\n",
        "cluster \"prod\" {\n  mode        = \"manage\"\n  region      = \"eu-central-1\"\n  zonal_shift = true\n",
        "  leader_election {\n    lease = \"kube-system/autoscaler\"\n  }\n",
        "  tags = {\n    \"Team\" = \"platform\"\n  }\n  eks {\n    endpoint = \"https://prod.example\"\n  }\n",
        "  interruption {\n    queue = \"outrigger\"\n  }\n",
        "  eks {}\n}\n",
      ] : strcontains(output.configuration, text)
    ])
    error_message = "Each cluster has a block with its values."
  }
}

run "published" {
  command = plan

  assert {
    condition = jsondecode(output.terraform_output) == {
      clusters = {
        lab = { disable_dry_run = true, mode = "observe", region = "us-west-2", tags = {}, zonal_shift = false }
        prod = {
          disable_dry_run  = false
          endpoint         = "https://prod.example"
          instance_profile = "outrigger-prod"
          lease_name       = "autoscaler"
          mode             = "manage"
          queue            = "outrigger"
          region           = "eu-central-1"
          tags             = { Team = "platform" }
          zonal_shift      = true
        }
        spoke = {
          disable_dry_run = true
          mode            = "observe"
          region          = "us-west-2"
          role_arn        = "arn:aws:iam::210987654321:role/outrigger"
          tags            = {}
          zonal_shift     = false
        }
      }
    }
    error_message = "The parameter has the values of each cluster."
  }
  assert {
    condition = alltrue([
      for name, own in output.clusters : alltrue([
        for key, value in own : can(regex("\n      ${key} +?= ${replace(jsonencode(value), "/", "\\/")}\n", output.configuration))
        if key != "tags"
      ])
    ])
    error_message = "The published value equals `local.clusters`."
  }
  assert {
    condition = alltrue([
      for text in ["{ \"Team\" = \"platform\" }", "{}"] : can(regex("\n      tags +?= ${text}\n", output.configuration))
    ])
    error_message = "The published value includes the tags."
  }
}

# The names that the documentation and user configurations rely on.
run "names" {
  command = plan

  variables {
    clusters = {
      prod = {
        region           = "eu-central-1"
        eks_name         = "a"
        endpoint         = "https://b"
        ca               = "c"
        service_cidr     = "d"
        role_arn         = "e"
        external_id      = "j"
        queue            = "f"
        lease_name       = "g"
        instance_profile = "h"
        node_role        = "i"
        adopt            = false
      }
    }
  }

  assert {
    condition = keys(output.clusters.prod) == [
      "adopt", "ca", "disable_dry_run", "eks_name", "endpoint", "external_id", "instance_profile", "lease_name", "mode",
      "node_role", "queue", "region", "role_arn", "service_cidr", "tags", "zonal_shift",
    ]
    error_message = "Each value has its documented name."
  }
}

run "values" {
  command = plan

  variables {
    cluster_blocks = false
  }

  assert {
    condition     = !strcontains(output.configuration, "cluster \"") && strcontains(output.configuration, "\"spoke\" = {")
    error_message = "The configuration has only `local.clusters`."
  }
}

run "no_clusters" {
  command = plan

  variables {
    clusters = {}
  }

  assert {
    condition     = strcontains(output.configuration, "  clusters = {\n  }\n")
    error_message = "An installation may have no clusters."
  }
}

run "parameters" {
  command = plan

  variables {
    ssm_path = "/outrigger/platform/outputs"
  }

  assert {
    condition = (
      jsonencode(merge([for own in values(output.ssm_parameters) : jsondecode(own).clusters]...)) == jsonencode(output.clusters) &&
      sum([for own in values(output.ssm_parameters) : length(jsondecode(own).clusters)]) == 3
    )
    error_message = "Each cluster is in exactly one parameter."
  }
  assert {
    condition     = length(output.ssm_parameters) == 16 && contains(keys(output.ssm_parameters), "/outrigger/platform/outputs/f")
    error_message = "The number of parameters is fixed."
  }
  assert {
    condition = alltrue([
      for name in keys(output.ssm_parameters) : strcontains(output.configuration, "  ssm_parameter = \"${name}\"\n")
    ])
    error_message = "The configuration reads all parameters."
  }
}

# The maximum number of clusters of a role, with the longest names that role names allow.
run "many" {
  command = plan

  variables {
    ssm_path = "/outrigger/platform/outputs"
    clusters = {
      for n in range(88) : format("%048d", n) => {
        region           = "ap-southeast-2"
        mode             = "manage"
        eks_name         = format("%048d", n)
        queue            = "outrigger"
        lease_name       = "outrigger"
        instance_profile = format("outrigger-node-%048d", n)
        node_role        = format("outrigger-node-%048d", n)
      }
    }
  }

  assert {
    condition     = sum([for own in values(output.ssm_parameters) : length(jsondecode(own).clusters)]) == 88
    error_message = "Every cluster is in a parameter."
  }
  assert {
    condition     = output.configuration == run.parameters.configuration
    error_message = "The configuration does not depend on the clusters."
  }
}

run "too_much" {
  command = plan

  variables {
    ssm_path = "/outrigger/platform/outputs"
    clusters = { prod = { region = "eu-central-1", ca = format("%08192d", 0) } }
  }

  expect_failures = [output.ssm_parameters]
}

run "no_path" {
  command = plan

  variables {
    ssm_path = "outputs/"
  }

  expect_failures = [var.ssm_path]
}

run "unknown_mode" {
  command = plan

  variables {
    clusters = { prod = { region = "eu-central-1", mode = "own" } }
  }

  expect_failures = [var.clusters]
}

run "no_name" {
  command = plan

  variables {
    clusters = { "prod eu" = { region = "eu-central-1" } }
  }

  expect_failures = [var.clusters]
}

run "no_kubeconfig" {
  command = plan

  variables {
    clusters = { lab = { region = "eu-central-1", kubeconfig = { file = "/k" } } }
  }

  expect_failures = [var.clusters]
}

run "an_expression" {
  command = plan

  variables {
    clusters = { prod = { region = "eu-central-1", tags = { Team = "$${secret(\"x\")}" } } }
  }

  expect_failures = [var.clusters]
}
