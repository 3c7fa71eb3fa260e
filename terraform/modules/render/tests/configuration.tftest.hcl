variables {
  installation = "platform"
  clusters = {
    prod = {
      region           = "eu-central-1"
      mode             = "manage"
      queue            = "outrigger"
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
        "cluster \"lab\" {\n  mode   = \"observe\"\n  region = \"us-west-2\"\n  kubeconfig {\n",
        "  tags = {\n    \"Team\" = \"platform\"\n  }\n  eks {\n    endpoint = \"https://prod.example\"\n  }\n",
        "  interruption {\n    queue = \"outrigger\"\n  }\n",
        "  eks {}\n}\n",
      ] : strcontains(output.configuration, text)
    ])
    error_message = "Each cluster has a block that says what is known of it."
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
