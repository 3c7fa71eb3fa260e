//! Fields of the AWS CLI output without an argument: ignored fields, and dropped fields with the
//! reason.

use serde_json::{Map, Value};

use crate::migrate::dropped::{DroppedFields, join_path};

/// A field with the reason that it is dropped. `None` if it is ignored.
type UnsupportedField = &'static [(&'static str, &'static str)];

/// Fields of an Auto Scaling group.
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
    ("CapacityRebalance", "use rebalance in the interruption block of the cluster"),
    ("CapacityReservationSpecification", "use capacity_reservation blocks in the node class"),
    ("Context", "reserved by AWS"),
    (
        "LoadBalancerNames",
        "nodes are not registered with load balancers; a controller in the cluster does that",
    ),
    ("SuspendedProcesses", "processes of a pool cannot be suspended; use outrigger pause"),
    (
        "TargetGroupARNs",
        "nodes are not registered with load balancers; a controller in the cluster does that",
    ),
    (
        "TrafficSources",
        "nodes are not registered with load balancers; a controller in the cluster does that",
    ),
    ("WarmPoolConfiguration", "warm pools are not supported; use a buffer"),
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
        "cores and threads cannot be changed; cpu_options has only nested virtualization",
    ),
    ("CreditSpecification", "instances use the default credits of their type"),
    ("EnclaveOptions", "to use enclaves, request their resource"),
    ("HibernationOptions", "nodes cannot hibernate"),
    ("KeyName", "nodes have no SSH key; use Session Manager, or add a key with user data"),
    ("LicenseSpecifications", "Outrigger has no equivalent"),
    ("PrivateDnsNameOptions", "the subnet determines host names"),
];

/// Fields of an EKS node group.
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
    ("remoteAccess", "nodes have no SSH key; use Session Manager, or add a key with user data"),
    ("warmPoolConfig", "warm pools are not supported; use a buffer"),
];

/// Reports the remaining fields, except ignored ones.
pub(super) fn report_unsupported(
    fields: &Map<String, Value>,
    known: UnsupportedField,
    path: &str,
    losses: &mut DroppedFields,
) {
    for (name, value) in fields {
        let found = known.iter().find(|(field, _)| field == name);
        match found {
            Some((_, "")) => {}
            _ if is_unset_value(value) => {}
            Some((_, why)) => losses.add(join_path(path, name), *why),
            None => losses.add(join_path(path, name), "unknown field"),
        }
    }
}

/// Returns whether a value is what AWS prints for an unset field.
fn is_unset_value(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => matches!(text.as_str(), "" | "none" | "default" | "units"),
        Value::Array(items) => items.iter().all(is_unset_value),
        Value::Object(items) => items.values().all(is_unset_value),
    }
}
