//! Fields of the AWS CLI output without an argument: ignored fields, and dropped fields with the
//! reason.

use serde_json::{Map, Value};

use crate::migrate::dropped::{DroppedFields, join_path};

/// The fields of one kind of object that have no argument.
pub(super) struct UnsupportedFields {
    /// Fields that are ignored, separated by blanks.
    ignored: &'static str,
    /// Fields that are dropped, with the reason.
    dropped: &'static [(&'static str, &'static str)],
}

/// Fields of an Auto Scaling group.
pub(super) const GROUP: UnsupportedFields = UnsupportedFields {
    ignored: "AutoScalingGroupARN AvailabilityZoneDistribution AvailabilityZoneIds \
              AvailabilityZoneImpairmentPolicy CreatedTime DefaultCooldown DefaultInstanceWarmup \
              DeletionProtection DesiredCapacity EnabledMetrics HealthCheckGracePeriod \
              HealthCheckType InstanceMaintenancePolicy Instances \
              NewInstancesProtectedFromScaleIn PredictedCapacity ServiceLinkedRoleARN Status \
              TerminationPolicies WarmPoolSize",
    dropped: &[
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
    ],
};

/// Fields of a launch template.
pub(super) const TEMPLATE: UnsupportedFields = UnsupportedFields {
    ignored: "DisableApiStop DisableApiTermination EbsOptimized \
              InstanceInitiatedShutdownBehavior InstanceType InstanceRequirements",
    dropped: &[
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
    ],
};

/// Fields of an EKS node group.
pub(super) const MANAGED: UnsupportedFields = UnsupportedFields {
    ignored: "amiType capacityType clusterName createdAt diskSize health instanceTypes labels \
              launchTemplate modifiedAt nodeRepairConfig nodeRole nodegroupArn nodegroupName \
              releaseVersion resources scalingConfig status subnets tags taints updateConfig \
              version",
    dropped: &[
        ("remoteAccess", "nodes have no SSH key; use Session Manager, or add a key with user data"),
        ("warmPoolConfig", "warm pools are not supported; use a buffer"),
    ],
};

/// Reports the remaining fields, except ignored ones.
pub(super) fn report_unsupported(
    fields: &Map<String, Value>,
    known: UnsupportedFields,
    path: &str,
    losses: &mut DroppedFields,
) {
    for (name, value) in fields {
        if is_unset_value(value) || known.ignored.split_whitespace().any(|field| field == name) {
            continue;
        }
        let found = known.dropped.iter().find(|(field, _)| field == name);
        let why = found.map_or("unknown field", |(_, why)| why);
        losses.add(join_path(path, name), why);
    }
}

/// Returns whether a value is the one that AWS prints for an unset field.
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
