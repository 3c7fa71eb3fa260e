# Statements with the same effect as in Karpenter's policy have the same names, for easy comparison. The
# installation tag marks all owned resources. Statements that launch or terminate instances also match the
# cluster tag, so that they apply only to managed clusters.

locals {
  managed      = [for own in var.cluster_rights : own if own.mode == "manage"]
  names        = [for own in local.managed : own.name]
  node_roles   = distinct(flatten(local.managed[*].node_role_arns))
  adopting     = [for own in local.managed : own if own.adopt]
  eks_arns     = compact(var.cluster_rights[*].eks_cluster_arn)
  shifted_arns = compact([for own in var.cluster_rights : own.eks_cluster_arn if own.zonal_shift])

  ec2       = "arn:${var.partition}:ec2:${var.region}"
  own       = { "aws:ResourceTag/outrigger.dev/installation" = var.installation }
  requested = { "aws:RequestTag/outrigger.dev/installation" = var.installation }
  own_managed = merge(local.own, {
    "aws:ResourceTag/outrigger.dev/cluster" = local.names
  })
  requested_managed = merge(local.requested, {
    "aws:RequestTag/outrigger.dev/cluster" = local.names
  })
  made = [
    for kind in ["fleet", "instance", "volume", "network-interface", "launch-template", "spot-instances-request"] :
    "${local.ec2}:${var.account_id}:${kind}/*"
  ]
  profiles = "arn:${var.partition}:iam::${var.account_id}:instance-profile/outrigger/${var.region}/${var.installation}/*"

  launch = [
    {
      Sid    = "AllowScopedEC2InstanceAccessActions"
      Effect = "Allow"
      Action = ["ec2:RunInstances", "ec2:CreateFleet"]
      Resource = concat(
        ["${local.ec2}::image/*", "${local.ec2}::snapshot/*"],
        [for kind in ["security-group", "subnet", "capacity-reservation", "placement-group"] : "${local.ec2}:*:${kind}/*"],
      )
    },
    {
      Sid       = "AllowScopedEC2LaunchTemplateAccessActions"
      Effect    = "Allow"
      Action    = ["ec2:RunInstances", "ec2:CreateFleet"]
      Resource  = ["${local.ec2}:${var.account_id}:launch-template/*"]
      Condition = { StringEquals = local.own }
    },
    {
      Sid       = "AllowScopedEC2InstanceActionsWithTags"
      Effect    = "Allow"
      Action    = ["ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate"]
      Resource  = local.made
      Condition = { StringEquals = local.requested_managed }
    },
    {
      # Only during the creation of resources by these actions.
      Sid      = "AllowScopedResourceCreationTagging"
      Effect   = "Allow"
      Action   = ["ec2:CreateTags"]
      Resource = ["${local.ec2}:${var.account_id}:*/*"]
      Condition = {
        StringEquals = merge(local.requested, {
          "ec2:CreateAction" = ["RunInstances", "CreateFleet", "CreateLaunchTemplate"]
        })
      }
    },
    {
      Sid      = "AllowScopedResourceTagging"
      Effect   = "Allow"
      Action   = ["ec2:CreateTags"]
      Resource = ["${local.ec2}:${var.account_id}:instance/*"]
      # The role cannot change the tags that identify the claim, cluster and installation of an instance.
      # IAM ignores the case of tag keys.
      Condition = {
        StringEquals = local.own_managed
        "ForAllValues:StringNotEqualsIgnoreCase" = {
          "aws:TagKeys" = [
            for own in ["batch", "claim", "cluster", "cluster-uid", "installation", "lease"] : "outrigger.dev/${own}"
          ]
        }
      }
    },
    {
      Sid       = "AllowScopedDeletion"
      Effect    = "Allow"
      Action    = ["ec2:TerminateInstances"]
      Resource  = ["${local.ec2}:${var.account_id}:instance/*"]
      Condition = { StringEquals = local.own_managed }
    },
    # Also the templates of clusters that are no longer managed: no other process deletes them.
    {
      Sid       = "AllowScopedTemplateDeletion"
      Effect    = "Allow"
      Action    = ["ec2:DeleteLaunchTemplate"]
      Resource  = ["${local.ec2}:${var.account_id}:launch-template/*"]
      Condition = { StringEquals = local.own }
    },
    {
      Sid      = "AllowPassingInstanceRole"
      Effect   = "Allow"
      Action   = ["iam:PassRole"]
      Resource = local.node_roles
      Condition = {
        StringEquals = { "iam:PassedToService" = ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"] }
      }
    },
  ]

  # Matches the tags that Karpenter sets on its instances. Instances of an installation cannot be adopted.
  adoption = [
    {
      Sid      = "AllowAdoptionTagging"
      Effect   = "Allow"
      Action   = ["ec2:CreateTags"]
      Resource = ["${local.ec2}:${var.account_id}:instance/*"]
      Condition = {
        StringEquals = merge(local.requested, {
          "aws:RequestTag/outrigger.dev/cluster" = local.adopting[*].name
          "aws:ResourceTag/eks:eks-cluster-name" = [
            for own in local.adopting : try(split("/", own.eks_cluster_arn)[1], own.name)
          ]
        })
        StringLike = { "aws:ResourceTag/karpenter.sh/nodepool" = ["*"] }
        Null       = { "aws:ResourceTag/outrigger.dev/installation" = "true" }
      }
    },
  ]

  instance_profiles = [
    {
      Sid       = "AllowScopedInstanceProfileCreationActions"
      Effect    = "Allow"
      Action    = ["iam:CreateInstanceProfile", "iam:TagInstanceProfile"]
      Resource  = [local.profiles]
      Condition = { StringEquals = local.requested }
    },
    {
      Sid    = "AllowScopedInstanceProfileActions"
      Effect = "Allow"
      Action = [
        "iam:AddRoleToInstanceProfile",
        "iam:RemoveRoleFromInstanceProfile",
        "iam:DeleteInstanceProfile",
      ]
      Resource  = [local.profiles]
      Condition = { StringEquals = local.own }
    },
    {
      Sid      = "AllowUnscopedInstanceProfileListAction"
      Effect   = "Allow"
      Action   = ["iam:ListInstanceProfiles"]
      Resource = ["*"]
    },
    {
      Sid    = "AllowInstanceProfileReadActions"
      Effect = "Allow"
      Action = ["iam:GetInstanceProfile"]
      # A profile that does not exist yet has no path: IAM matches only its name.
      Resource = [local.profiles, "arn:${var.partition}:iam::${var.account_id}:instance-profile/outrigger-*"]
    },
  ]

  discovery = [
    {
      Sid      = "AllowAPIServerEndpointDiscovery"
      Effect   = "Allow"
      Action   = ["eks:DescribeCluster"]
      Resource = local.eks_arns
    },
  ]

  shifts = [
    {
      Sid       = "AllowZonalShiftStatusReadOnly"
      Effect    = "Allow"
      Action    = ["arc-zonal-shift:GetManagedResource"]
      Resource  = ["*"]
      Condition = { StringEquals = { "arc-zonal-shift:ResourceIdentifier" = local.shifted_arns } }
    },
  ]

  interruptions = [
    {
      Sid    = "AllowInterruptionQueueActions"
      Effect = "Allow"
      Action = [
        "sqs:DeleteMessage",
        "sqs:GetQueueUrl",
        "sqs:ReceiveMessage",
        "sqs:ChangeMessageVisibility",
      ]
      Resource = var.queue_arns
    },
  ]

  read = [
    {
      Sid    = "AllowRegionalReadActions"
      Effect = "Allow"
      Action = [
        "ec2:DescribeCapacityReservations",
        "ec2:DescribeImages",
        "ec2:DescribeInstances",
        "ec2:DescribeInstanceStatus",
        "ec2:DescribeInstanceTypeOfferings",
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeLaunchTemplates",
        "ec2:DescribePlacementGroups",
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeSpotPriceHistory",
        "ec2:DescribeSubnets",
      ]
      Resource  = ["*"]
      Condition = { StringEquals = { "aws:RequestedRegion" = var.region } }
    },
    {
      Sid    = "AllowSSMReadActions"
      Effect = "Allow"
      Action = ["ssm:GetParameter"]
      Resource = concat(
        ["arn:${var.partition}:ssm:${var.region}::parameter/aws/service/*"],
        var.ssm_parameter_arns,
      )
    },
    {
      Sid      = "AllowPricingReadActions"
      Effect   = "Allow"
      Action   = ["pricing:GetProducts"]
      Resource = ["*"]
    },
  ]

  # Granted only if a cluster is managed.
  changes = concat(local.launch, [for own in local.instance_profiles : own if var.manage_instance_profiles])

  statements = concat(
    [for own in local.changes : own if length(local.managed) > 0],
    [for own in local.adoption : own if length(local.adopting) > 0],
    local.read,
    [for own in local.discovery : own if length(local.eks_arns) > 0],
    [for own in local.shifts : own if length(local.shifted_arns) > 0],
    [for own in local.interruptions : own if length(var.queue_arns) > 0],
  )

  policy = jsonencode({ Version = "2012-10-17", Statement = local.statements })
}
