//! Maps actions to the statements of the shipped IAM policy, so that errors can name the missing
//! statement.
//!
//! Source: spec/aws.md §7.1; the names of statements are those of `terraform/`.

/// A statement of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The name of the statement.
    pub sid: &'static str,
    /// Granted actions.
    pub actions: &'static [&'static str],
    /// Prefix of the resource in the ARN. Empty means any.
    pub resources: &'static [&'static str],
}

const fn statement_on(
    sid: &'static str,
    actions: &'static [&'static str],
    resources: &'static [&'static str],
) -> Statement {
    Statement { sid, actions, resources }
}

const fn statement_on_any(sid: &'static str, actions: &'static [&'static str]) -> Statement {
    statement_on(sid, actions, &[])
}

/// Statement for tags on existing instances. The statement for launches has the same ARN.
pub const TAGGING: &str = "AllowScopedResourceTagging";

/// Statement for tags on adopted Karpenter instances.
pub const ADOPTION: &str = "AllowAdoptionTagging";

const LAUNCH: &[&str] = &["ec2:RunInstances", "ec2:CreateFleet"];

/// All statements. The first match applies.
pub const STATEMENTS: [Statement; 20] = [
    statement_on(
        "AllowScopedEC2InstanceAccessActions",
        LAUNCH,
        &[
            "image/",
            "snapshot/",
            "security-group/",
            "subnet/",
            "capacity-reservation/",
            "placement-group/",
        ],
    ),
    statement_on("AllowScopedEC2LaunchTemplateAccessActions", LAUNCH, &["launch-template/"]),
    statement_on_any("AllowScopedEC2InstanceActionsWithTags", LAUNCH),
    statement_on_any("AllowScopedEC2InstanceActionsWithTags", &["ec2:CreateLaunchTemplate"]),
    statement_on_any("AllowScopedResourceCreationTagging", &["ec2:CreateTags"]),
    statement_on_any(TAGGING, &["ec2:CreateTags"]),
    statement_on_any(ADOPTION, &["ec2:CreateTags"]),
    statement_on_any("AllowScopedDeletion", &["ec2:TerminateInstances"]),
    statement_on_any("AllowScopedTemplateDeletion", &["ec2:DeleteLaunchTemplate"]),
    statement_on_any("AllowPassingInstanceRole", &["iam:PassRole"]),
    statement_on_any(
        "AllowScopedInstanceProfileCreationActions",
        &["iam:CreateInstanceProfile", "iam:TagInstanceProfile"],
    ),
    statement_on_any(
        "AllowScopedInstanceProfileActions",
        &[
            "iam:AddRoleToInstanceProfile",
            "iam:RemoveRoleFromInstanceProfile",
            "iam:DeleteInstanceProfile",
        ],
    ),
    statement_on_any("AllowUnscopedInstanceProfileListAction", &["iam:ListInstanceProfiles"]),
    statement_on_any("AllowInstanceProfileReadActions", &["iam:GetInstanceProfile"]),
    statement_on_any("AllowAPIServerEndpointDiscovery", &["eks:DescribeCluster"]),
    statement_on_any(
        "AllowInterruptionQueueActions",
        &[
            "sqs:DeleteMessage",
            "sqs:GetQueueUrl",
            "sqs:ReceiveMessage",
            "sqs:ChangeMessageVisibility",
        ],
    ),
    statement_on_any("AllowZonalShiftStatusReadOnly", &["arc-zonal-shift:GetManagedResource"]),
    statement_on_any(
        "AllowRegionalReadActions",
        &[
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
        ],
    ),
    statement_on_any("AllowSSMReadActions", &["ssm:GetParameter"]),
    statement_on_any("AllowPricingReadActions", &["pricing:GetProducts"]),
];

/// Returns the statement that grants an action on a resource with this ARN, or an empty string if
/// no such statement is known.
pub fn granting_statement(action: &str, arn: &str) -> Option<&'static str> {
    // arn:partition:service:region:account:type/id
    let resource = arn.splitn(6, ':').nth(5).unwrap_or("");
    STATEMENTS
        .iter()
        .find(|statement| {
            let on = statement.resources;
            statement.actions.iter().any(|allowed| allowed.eq_ignore_ascii_case(action))
                && (on.is_empty() || on.iter().any(|kind| resource.starts_with(kind)))
        })
        .map(|statement| statement.sid)
}
