variables {
  installation = "platform"
}

run "observe" {
  command = plan

  assert {
    condition = alltrue([
      for own in [for text in split("---\n", output.rbac) : yamldecode(text)] : alltrue([
        for rule in own.rules : alltrue([for verb in rule.verbs : contains(["get", "list", "watch"], verb)])
      ]) if contains(["ClusterRole", "Role"], own.kind) && own.metadata.name != "outrigger-manage"
    ])
    error_message = "The observe role allows only reads."
  }
  assert {
    condition = alltrue([
      for own in [for text in split("---\n", output.rbac) : yamldecode(text)] : length(own.subjects) == 0
      if own.kind == "ClusterRoleBinding" && own.metadata.name == "outrigger-manage"
    ])
    error_message = "The manage role has no subject."
  }
}

run "manage" {
  command = plan

  variables {
    mode  = "manage"
    group = "autoscalers"
  }

  assert {
    condition = alltrue([
      for own in [for text in split("---\n", output.rbac) : yamldecode(text)] :
      own.subjects == [{ apiGroup = "rbac.authorization.k8s.io", kind = "Group", name = "autoscalers" }]
      if can(own.subjects)
    ])
    error_message = "Every role is bound to the group."
  }
  assert {
    condition = toset(flatten([
      for own in [for text in split("---\n", output.rbac) : yamldecode(text)] : [
        for rule in own.rules : [
          for resource in rule.resources : [for verb in rule.verbs : "${verb} ${resource}"]
        ]
      ] if own.kind == "ClusterRole" && own.metadata.name == "outrigger-manage"
      ])) == toset([
      "patch nodes", "delete nodes", "create pods/eviction", "list volumeattachments", "patch pods/status",
      "patch capacitybuffers/status", "create events",
    ])
    error_message = "The default options grant exactly the permissions that the daemon uses."
  }
  assert {
    condition = alltrue(flatten([
      for own in [for text in split("---\n", output.rbac) : yamldecode(text)] : [
        for rule in own.rules : can(rule.resourceNames) || rule.verbs == ["create"]
      ] if own.kind == "Role"
    ]))
    error_message = "In kube-system each permission except create is limited to one name."
  }
  assert {
    condition     = !strcontains(output.rbac, "\"*\"") && !strcontains(output.rbac, "secrets")
    error_message = "No rule has wildcards or Secrets."
  }
}

run "lease" {
  command = plan

  variables {
    mode       = "manage"
    lease_name = "autoscaler"
  }

  assert {
    condition = toset(flatten([
      for own in [for text in split("---\n", output.rbac) : yamldecode(text)] : [
        for rule in own.rules : [
          for verb in rule.verbs : "${verb} ${join(" ", try(rule.resourceNames, []))}" if contains(rule.resources, "leases")
        ]
      ] if own.kind == "Role"
    ])) == toset(["get autoscaler", "patch autoscaler", "create "])
    error_message = "Only the Lease `lease_name` may be read and patched, and only create has no name."
  }
  assert {
    condition = alltrue([
      for own in [for text in split("---\n", output.rbac) : yamldecode(text)] :
      alltrue([
        for rule in own.rules : rule.resourceNames == ["karpenter-leader-election"] && rule.verbs == ["get"]
        if contains(try(rule.resources, []), "leases")
      ]) if own.kind == "ClusterRole"
    ])
    error_message = "Leases of other namespaces cannot be changed."
  }
}

run "lease_observed" {
  command = plan

  assert {
    condition = flatten([
      for own in [for text in split("---\n", output.rbac) : yamldecode(text)] : [
        for rule in own.rules : [for verb in rule.verbs : "${verb} ${join(" ", rule.resourceNames)}"]
        if contains(rule.resources, "leases")
      ] if own.kind == "Role"
    ]) == ["get outrigger"]
    error_message = "In observe mode the Lease can only be read."
  }
}

run "any_lease" {
  command = plan

  variables {
    lease_name = "*"
  }

  expect_failures = [var.lease_name]
}

run "options" {
  command = plan

  variables {
    mode             = "manage"
    placement_hints  = false
    early_binding    = true
    capacity_buffers = false
    events           = false
    default_spread   = true
    bootstrap_tokens = true
  }

  assert {
    condition = toset(flatten([
      for own in [for text in split("---\n", output.rbac) : yamldecode(text)] : [
        for rule in own.rules : [
          for resource in rule.resources : [for verb in rule.verbs : "${verb} ${resource}"]
        ]
      ] if own.kind == "ClusterRole" && own.metadata.name == "outrigger-manage"
      ])) == toset([
      "patch nodes", "delete nodes", "create nodes", "create pods/eviction", "list volumeattachments",
      "create pods/binding", "delete pods",
    ])
    error_message = "Early binding allows creating nodes, and binding and deleting pods."
  }
  assert {
    condition     = !strcontains(output.rbac, "capacitybuffers") && strcontains(output.rbac, "replicasets")
    error_message = "Each option grants exactly its rules."
  }
  assert {
    condition = anytrue(flatten([
      for own in [for text in split("---\n", output.rbac) : yamldecode(text)] : [
        for rule in own.rules : rule.resources == ["secrets"] && rule.verbs == ["create"]
      ] if own.kind == "Role"
    ]))
    error_message = "Secrets can be created, and not read."
  }
}

run "flow" {
  command = plan

  variables {
    user = "autoscaler"
  }

  assert {
    condition = {
      for own in [for text in split("---\n", output.flow_schemas) : yamldecode(text)] :
      own.metadata.name => own.spec.priorityLevelConfiguration.name
    } == { outrigger = "workload-high", "outrigger-leases" = "leader-election" }
    error_message = "Requests have a higher priority than those of other users, and Lease requests the highest."
  }
  assert {
    condition = alltrue([
      for own in [for text in split("---\n", output.flow_schemas) : yamldecode(text)] :
      own.spec.rules[0].subjects == [{ kind = "User", user = { name = "autoscaler" } }]
    ])
    error_message = "The FlowSchemas match only the daemon's requests."
  }
}

run "unknown_mode" {
  command = plan

  variables {
    mode = "own"
  }

  expect_failures = [var.mode]
}

run "group_of_kubernetes" {
  command = plan

  variables {
    group = "system:masters"
  }

  expect_failures = [var.group]
}

run "everybody" {
  command = plan

  variables {
    user = "*"
  }

  expect_failures = [var.user]
}

run "scheduler" {
  command = plan

  variables {
    user = "system:kube-scheduler"
  }

  expect_failures = [var.user]
}

run "service_account" {
  command = plan

  variables {
    user = "system:serviceaccount:kube-system:outrigger"
  }

  assert {
    condition     = strcontains(output.flow_schemas, "system:serviceaccount:kube-system:outrigger")
    error_message = "A ServiceAccount is allowed outside EKS."
  }
}

run "nobody" {
  command = plan

  variables {
    user = ""
  }

  expect_failures = [var.user]
}

run "group_of_eks" {
  command = plan

  variables {
    group = "eks:cluster-admins"
  }

  expect_failures = [var.group]
}
