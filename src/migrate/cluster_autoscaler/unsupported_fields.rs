//! Fields of AWS' answers that are no argument: which say nothing, and why the others are lost.
//! It must not know which fields become arguments.

use serde_json::{Map, Value};

use crate::migrate::dropped::{DroppedFields, joined};

/// A field with why it is lost; with nothing where nothing is.
type UnsupportedField = &'static [(&'static str, &'static str)];

/// Fields of a group.
pub(super) const GROUP: UnsupportedField = &[
    ("AutoScalingGroupARN", ""),
    ("AvailabilityZoneDistribution", ""),
    ("AvailabilityZoneIds", ""),
    ("AvailabilityZoneImpairmentPolicy", ""),
    ("CreatedTime", ""),
    ("DefaultCooldown", ""),
    ("DefaultInstanceWarmup", ""),
    ("DeletionProtection", ""),
    ("DesiredCapacity", ""),
    ("EnabledMetrics", ""),
    ("HealthCheckGracePeriod", ""),
    ("HealthCheckType", ""),
    ("InstanceMaintenancePolicy", ""),
    ("Instances", ""),
    ("NewInstancesProtectedFromScaleIn", ""),
    ("PredictedCapacity", ""),
    ("ServiceLinkedRoleARN", ""),
    ("Status", ""),
    ("TerminationPolicies", ""),
    (
        "CapacityRebalance",
        "rebalance in the interruption block of the cluster says what becomes of such advice",
    ),
    (
        "CapacityReservationSpecification",
        "capacity_reservation blocks of the node class name reservations",
    ),
    ("Context", "it is for AWS' own use"),
    (
        "LoadBalancerNames",
        "nodes are put behind no load balancer: a controller in the cluster does that",
    ),
    (
        "SuspendedProcesses",
        "nothing of a pool is suspended: outrigger pause stops what may wait",
    ),
    (
        "TargetGroupARNs",
        "nodes are put behind no load balancer: a controller in the cluster does that",
    ),
    (
        "TrafficSources",
        "nodes are put behind no load balancer: a controller in the cluster does that",
    ),
    (
        "WarmPoolConfiguration",
        "no stopped instances are kept: a buffer keeps room",
    ),
    ("WarmPoolSize", ""),
];

/// Fields of a launch template.
pub(super) const TEMPLATE: UnsupportedField = &[
    ("DisableApiStop", ""),
    ("DisableApiTermination", ""),
    ("EbsOptimized", ""),
    ("InstanceInitiatedShutdownBehavior", ""),
    ("InstanceType", ""),
    ("InstanceRequirements", ""),
    (
        "CpuOptions",
        "cores and threads are those of the type: cpu_options says only what nests",
    ),
    (
        "CreditSpecification",
        "instances have the credits that their type has",
    ),
    (
        "EnclaveOptions",
        "enclaves are had by asking for their resource",
    ),
    ("HibernationOptions", "nodes do not hibernate"),
    (
        "KeyName",
        "nodes get no key: Session Manager, or user data of your own, lets you in",
    ),
    ("LicenseSpecifications", "there is nothing like it"),
    (
        "PrivateDnsNameOptions",
        "names are those that the subnet gives",
    ),
];

/// Fields of a node group of EKS.
pub(super) const MANAGED: UnsupportedField = &[
    ("amiType", ""),
    ("capacityType", ""),
    ("clusterName", ""),
    ("createdAt", ""),
    ("diskSize", ""),
    ("health", ""),
    ("instanceTypes", ""),
    ("labels", ""),
    ("launchTemplate", ""),
    ("modifiedAt", ""),
    ("nodeRepairConfig", ""),
    ("nodeRole", ""),
    ("nodegroupArn", ""),
    ("nodegroupName", ""),
    ("releaseVersion", ""),
    ("resources", ""),
    ("scalingConfig", ""),
    ("status", ""),
    ("subnets", ""),
    ("tags", ""),
    ("taints", ""),
    ("updateConfig", ""),
    ("version", ""),
    (
        "remoteAccess",
        "nodes get no key: Session Manager, or user data of your own, lets you in",
    ),
    (
        "warmPoolConfig",
        "no stopped instances are kept: a buffer keeps room",
    ),
];

/// Reports what is left of some fields, but for what says nothing.
pub(super) fn report(
    fields: &Map<String, Value>,
    known: UnsupportedField,
    path: &str,
    losses: &mut DroppedFields,
) {
    for (name, value) in fields {
        let found = known.iter().find(|(own, _)| own == name);
        match found {
            Some((_, "")) => {}
            _ if says_nothing(value) => {}
            Some((_, why)) => losses.add(joined(path, name), *why),
            None => losses.add(joined(path, name), "an unknown field"),
        }
    }
}

/// Whether a value is what AWS prints of something that is not there.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => matches!(text.as_str(), "" | "none" | "default" | "units"),
        Value::Array(items) => items.iter().all(says_nothing),
        Value::Object(items) => items.values().all(says_nothing),
    }
}
