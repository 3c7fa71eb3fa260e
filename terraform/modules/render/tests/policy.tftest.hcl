variables {
  installation = "platform"
  region       = "eu-central-1"
  account_id   = "123456789012"
  cluster_rights = [
    { name = "prod", mode = "manage", node_role_arns = ["arn:aws:iam::123456789012:role/prod"] },
    { name = "lab", node_role_arns = ["arn:aws:iam::123456789012:role/lab"] },
  ]
}

run "least" {
  command = plan

  assert {
    condition     = !strcontains(output.policy, "iam:CreateInstanceProfile")
    error_message = "Instance profile permissions are granted only with manage_instance_profiles."
  }
  assert {
    condition = alltrue([
      for own in jsondecode(output.policy).Statement :
      !contains(own.Resource, "*") || alltrue([for action in own.Action : can(regex(":(Describe|Get|List)", action))])
    ])
    error_message = "Write permissions are not granted on all resources."
  }
}

run "managed_alone" {
  command = plan

  assert {
    condition = [
      for own in jsondecode(output.policy).Statement : own.Resource if own.Action == ["iam:PassRole"]
    ] == [["arn:aws:iam::123456789012:role/prod"]]
    error_message = "Only node roles of managed clusters can be passed to instances."
  }
  assert {
    condition = alltrue([
      for own in jsondecode(output.policy).Statement :
      try(own.Condition.StringEquals["aws:RequestTag/outrigger.dev/cluster"], []) == ["prod"]
      if contains(own.Action, "ec2:RunInstances") && can(own.Condition.StringEquals["aws:RequestTag/outrigger.dev/installation"])
    ])
    error_message = "Launched resources have the tag of a managed cluster."
  }
  assert {
    condition = toset([
      for own in jsondecode(output.policy).Statement : own.Sid
      if try(own.Condition.StringEquals["aws:ResourceTag/outrigger.dev/cluster"], []) == ["prod"]
      ]) == toset([
      "AllowScopedResourceTagging", "AllowScopedDeletion",
    ])
    error_message = "Only instances of managed clusters can be terminated or retagged."
  }
  assert {
    condition = [
      for own in jsondecode(output.policy).Statement : own.Condition["ForAllValues:StringNotEqualsIgnoreCase"]
      if own.Sid == "AllowScopedResourceTagging"
      ] == [{ "aws:TagKeys" = [
        "outrigger.dev/batch", "outrigger.dev/claim", "outrigger.dev/cluster", "outrigger.dev/cluster-uid",
        "outrigger.dev/installation", "outrigger.dev/lease",
    ] }]
    error_message = "The claim, cluster and installation tags of an instance cannot be changed."
  }
}

run "observed" {
  command = plan

  variables {
    manage_instance_profiles = true
    cluster_rights           = [{ name = "lab", node_role_arns = ["arn:aws:iam::123456789012:role/lab"] }]
  }

  assert {
    condition = toset([for own in jsondecode(output.policy).Statement : own.Sid]) == toset([
      "AllowRegionalReadActions", "AllowSSMReadActions", "AllowPricingReadActions",
    ])
    error_message = "Without a managed cluster the policy allows only reads."
  }
}

run "all" {
  command = plan

  variables {
    manage_instance_profiles = true
    queue_arns               = ["arn:aws:sqs:eu-central-1:123456789012:outrigger"]
    queue_key_arns           = ["arn:aws:kms:eu-central-1:123456789012:key/0123"]
    ssm_parameter_arns       = ["arn:aws:ssm:eu-central-1:123456789012:parameter/join/*"]
    ssm_parameter_key_arns   = ["arn:aws:kms:eu-central-1:123456789012:key/4567"]
    cluster_rights = [
      {
        name            = "prod"
        mode            = "manage"
        node_role_arns  = ["arn:aws:iam::123456789012:role/prod"]
        eks_cluster_arn = "arn:aws:eks:eu-central-1:123456789012:cluster/prod"
        zonal_shift     = true
        adopt           = true
      },
      { name = "lab", eks_cluster_arn = "arn:aws:eks:eu-central-1:123456789012:cluster/lab" },
    ]
  }

  assert {
    condition     = length(jsondecode(output.policy).Statement) == 19
    error_message = "The policy has every statement."
  }
  assert {
    condition     = length(jsondecode(output.decrypt_policy).Statement) == 2
    error_message = "The policy for keys has both statements."
  }
  assert {
    condition = [
      for own in jsondecode(output.policy).Statement : own.Resource if own.Action == ["eks:DescribeCluster"]
    ] == [["arn:aws:eks:eu-central-1:123456789012:cluster/prod", "arn:aws:eks:eu-central-1:123456789012:cluster/lab"]]
    error_message = "eks:DescribeCluster is granted for all clusters, in either mode."
  }
  assert {
    condition = [
      for own in jsondecode(output.policy).Statement : own.Condition.StringEquals["arc-zonal-shift:ResourceIdentifier"]
      if own.Sid == "AllowZonalShiftStatusReadOnly"
    ] == [["arn:aws:eks:eu-central-1:123456789012:cluster/prod"]]
    error_message = "Zonal shifts can be read only for clusters with zonal_shift."
  }
  assert {
    condition = [
      for own in jsondecode(output.policy).Statement : own.Condition.StringEquals["aws:ResourceTag/eks:eks-cluster-name"]
      if own.Sid == "AllowAdoptionTagging"
    ] == [["prod"]]
    error_message = "Only instances of clusters with adopt can be adopted."
  }
}

# A managed policy has 6,144 characters, enough for eleven EKS clusters.
run "many" {
  command = plan

  variables {
    queue_arns = ["arn:aws:sqs:eu-central-1:123456789012:outrigger"]
    cluster_rights = [
      for number in range(11) : {
        name            = "production-${number}"
        mode            = "manage"
        node_role_arns  = ["arn:aws:iam::123456789012:role/outrigger-node-production-${number}"]
        eks_cluster_arn = "arn:aws:eks:eu-central-1:123456789012:cluster/production-${number}"
      }
    ]
  }

  assert {
    condition     = length(output.policy) <= 6144
    error_message = "The policy fits into the size limit."
  }
}

run "too_many" {
  command = plan

  variables {
    cluster_rights = [
      for number in range(40) : {
        name            = "production-${number}"
        mode            = "manage"
        node_role_arns  = ["arn:aws:iam::123456789012:role/outrigger-node-production-${number}"]
        eks_cluster_arn = "arn:aws:eks:eu-central-1:123456789012:cluster/production-${number}"
      }
    ]
  }

  expect_failures = [output.policy]
}

run "nobody" {
  command = plan

  variables {
    installation = ""
  }

  expect_failures = [var.installation]
}

# The value is used in an ARN and in conditions.
run "everybody" {
  command = plan

  variables {
    installation = "*"
  }

  expect_failures = [var.installation]
}

run "no_account" {
  command = plan

  variables {
    account_id = "1234"
  }

  expect_failures = [var.account_id]
}

run "no_partition" {
  command = plan

  variables {
    partition = "aws:"
  }

  expect_failures = [var.partition]
}

run "nodes_without_a_role" {
  command = plan

  variables {
    cluster_rights = [{ name = "prod", mode = "manage" }]
  }

  expect_failures = [var.cluster_rights]
}

run "any_role" {
  command = plan

  variables {
    cluster_rights = [{ name = "prod", mode = "manage", node_role_arns = ["arn:aws:iam::123456789012:role/*"] }]
  }

  expect_failures = [var.cluster_rights]
}

run "any_cluster" {
  command = plan

  variables {
    cluster_rights = [{ name = "lab", eks_cluster_arn = "arn:aws:eks:eu-central-1:123456789012:cluster/*" }]
  }

  expect_failures = [var.cluster_rights]
}

run "any_name" {
  command = plan

  variables {
    cluster_rights = [{ name = "*" }]
  }

  expect_failures = [var.cluster_rights]
}

run "one_name_twice" {
  command = plan

  variables {
    cluster_rights = [
      { name = "prod", mode = "manage", node_role_arns = ["arn:aws:iam::123456789012:role/prod"] },
      { name = "prod" },
    ]
  }

  expect_failures = [var.cluster_rights]
}

run "half_managed" {
  command = plan

  variables {
    cluster_rights = [{ name = "prod", mode = "half", node_role_arns = ["arn:aws:iam::123456789012:role/prod"] }]
  }

  expect_failures = [var.cluster_rights]
}

run "any_parameter" {
  command = plan

  variables {
    ssm_parameter_arns = ["arn:aws:ssm:eu-central-1:123456789012:parameter/*"]
  }

  expect_failures = [var.ssm_parameter_arns]
}

run "parameters_of_own_key" {
  command = plan

  variables {
    ssm_parameter_arns     = ["arn:aws:ssm:eu-central-1:123456789012:parameter/join/*"]
    ssm_parameter_key_arns = ["arn:aws:kms:eu-central-1:123456789012:key/4567"]
  }

  assert {
    condition = [
      for own in jsondecode(output.decrypt_policy).Statement : own
      ] == [{
        Sid      = "AllowParameterKeyActions"
        Effect   = "Allow"
        Action   = ["kms:Decrypt"]
        Resource = ["arn:aws:kms:eu-central-1:123456789012:key/4567"]
        Condition = {
          StringLike = {
            "kms:EncryptionContext:PARAMETER_ARN" = ["arn:aws:ssm:eu-central-1:123456789012:parameter/join/*"]
          }
        }
    }]
    error_message = "The daemon may use the key only for the listed parameters."
  }
}

run "parameter_key_by_its_alias" {
  command = plan

  variables {
    ssm_parameter_arns     = ["arn:aws:ssm:eu-central-1:123456789012:parameter/join/*"]
    ssm_parameter_key_arns = ["arn:aws:kms:eu-central-1:123456789012:alias/join"]
  }

  expect_failures = [var.ssm_parameter_key_arns]
}

run "parameter_key_without_parameters" {
  command = plan

  variables {
    ssm_parameter_key_arns = ["arn:aws:kms:eu-central-1:123456789012:key/4567"]
  }

  expect_failures = [output.decrypt_policy]
}

run "any_queue" {
  command = plan

  variables {
    queue_arns = ["*"]
  }

  expect_failures = [var.queue_arns]
}

run "key_by_its_alias" {
  command = plan

  variables {
    queue_key_arns = ["arn:aws:kms:eu-central-1:123456789012:alias/queue"]
  }

  expect_failures = [var.queue_key_arns]
}
