# The statements are called as those of Karpenter's policy where they grant the same, so that the two
# can be read side by side. Ownership is one tag on everything: the installation.

locals {
  ec2       = "arn:${var.partition}:ec2:${var.region}"
  own       = { "aws:ResourceTag/outrigger.dev/installation" = var.installation }
  requested = { "aws:RequestTag/outrigger.dev/installation" = var.installation }
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
      Resource  = ["${local.ec2}:*:launch-template/*"]
      Condition = { StringEquals = local.own }
    },
    {
      Sid       = "AllowScopedEC2InstanceActionsWithTags"
      Effect    = "Allow"
      Action    = ["ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate"]
      Resource  = local.made
      Condition = { StringEquals = local.requested }
    },
    {
      Sid      = "AllowScopedResourceCreationTagging"
      Effect   = "Allow"
      Action   = ["ec2:CreateTags"]
      Resource = local.made
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
      Resource = ["${local.ec2}:*:instance/*"]
      Condition = {
        StringEquals         = local.own
        StringEqualsIfExists = local.requested
      }
    },
    {
      Sid       = "AllowScopedDeletion"
      Effect    = "Allow"
      Action    = ["ec2:TerminateInstances", "ec2:DeleteLaunchTemplate"]
      Resource  = ["${local.ec2}:*:instance/*", "${local.ec2}:*:launch-template/*"]
      Condition = { StringEquals = local.own }
    },
    {
      Sid      = "AllowPassingInstanceRole"
      Effect   = "Allow"
      Action   = ["iam:PassRole"]
      Resource = var.node_role_arns
      Condition = {
        StringEquals = { "iam:PassedToService" = ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"] }
      }
    },
  ]

  instance_profiles = [
    {
      Sid       = "AllowScopedInstanceProfileCreationActions"
      Effect    = "Allow"
      Action    = ["iam:CreateInstanceProfile"]
      Resource  = [local.profiles]
      Condition = { StringEquals = local.requested }
    },
    {
      Sid       = "AllowScopedInstanceProfileTagActions"
      Effect    = "Allow"
      Action    = ["iam:TagInstanceProfile"]
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
      # One that is not there yet has no path: IAM judges it by its name alone.
      Resource = [local.profiles, "arn:${var.partition}:iam::${var.account_id}:instance-profile/outrigger-*"]
    },
  ]

  discovery = [
    {
      Sid      = "AllowAPIServerEndpointDiscovery"
      Effect   = "Allow"
      Action   = ["eks:DescribeCluster"]
      Resource = var.eks_cluster_arns
    },
    {
      Sid       = "AllowZonalShiftStatusReadOnly"
      Effect    = "Allow"
      Action    = ["arc-zonal-shift:GetManagedResource"]
      Resource  = ["*"]
      Condition = { StringEquals = { "arc-zonal-shift:ResourceIdentifier" = var.eks_cluster_arns } }
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

  statements = concat(
    local.launch,
    local.read,
    [for own in local.instance_profiles : own if var.manage_instance_profiles],
    [for own in local.discovery : own if length(var.eks_cluster_arns) > 0],
    [for own in local.interruptions : own if length(var.queue_arns) > 0],
  )
}
