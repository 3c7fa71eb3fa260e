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
        "    \"prod\" = {\n      endpoint         = \"https://prod.example\"\n",
        "cluster \"lab\" {\n  disable_dry_run = true\n  mode            = \"observe\"\n  region          = \"us-west-2\"\n  kubeconfig {\n",
        "cluster \"prod\" {\n  mode        = \"manage\"\n  region      = \"eu-central-1\"\n  zonal_shift = true\n",
        "  leader_election {\n    lease = \"kube-system/autoscaler\"\n  }\n",
        "  tags = {\n    \"Team\" = \"platform\"\n  }\n  eks {\n    endpoint = \"https://prod.example\"\n  }\n",
        "  interruption {\n    queue = \"outrigger\"\n  }\n",
        "  eks {}\n}\n",
      ] : strcontains(output.configuration, text)
    ])
    error_message = "Each cluster has a block that says what is known of it."
  }
}

run "published" {
  command = plan

  assert {
    condition = jsondecode(output.terraform_output) == {
      clusters = {
        lab = { mode = "observe", region = "us-west-2" }
        prod = {
          endpoint         = "https://prod.example"
          instance_profile = "outrigger-prod"
          lease_name       = "autoscaler"
          mode             = "manage"
          queue            = "outrigger"
          region           = "eu-central-1"
        }
        spoke = { mode = "observe", region = "us-west-2", role_arn = "arn:aws:iam::210987654321:role/outrigger" }
      }
    }
    error_message = "A parameter holds what is known of each cluster."
  }
  assert {
    condition = alltrue([
      for name, own in output.clusters : alltrue([
        for key, value in own : can(regex("\n      ${key} +?= \"${replace(value, "/", "\\/")}\"\n", output.configuration))
      ])
    ])
    error_message = "What is published is `local.clusters`."
  }
}

# The names that docs and configurations of users go by.
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
        queue            = "f"
        lease_name       = "g"
        instance_profile = "h"
        node_role        = "i"
      }
    }
  }

  assert {
    condition = keys(output.clusters.prod) == [
      "ca", "eks_name", "endpoint", "instance_profile", "lease_name", "mode", "node_role", "queue", "region", "role_arn",
      "service_cidr",
    ]
    error_message = "Each thing that is known has its name."
  }
}

run "values" {
  command = plan

  variables {
    cluster_blocks = false
  }

  assert {
    condition     = !strcontains(output.configuration, "cluster \"") && strcontains(output.configuration, "\"spoke\" = {")
    error_message = "Only `local.clusters` is there."
  }
}

run "no_clusters" {
  command = plan

  variables {
    clusters = {}
  }

  assert {
    condition     = strcontains(output.configuration, "  clusters = {\n  }\n")
    error_message = "An installation may have no clusters yet."
  }
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
