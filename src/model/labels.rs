//! Labels, annotations, taints and tags of Kubernetes, Karpenter and Outrigger.
//!
//! `karpenter.sh/*` is kept where workloads and dashboards rely on it. Names without a Karpenter
//! equivalent are `outrigger.dev/*`.

use std::collections::BTreeMap;

/// Labels, annotations or tags. Sorted, so that all results are deterministic.
pub type Labels = BTreeMap<String, String>;

/// Zone of a node.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Region of a node.
pub const REGION: &str = "topology.kubernetes.io/region";
/// Host name of a node.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Instance type of a node.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// Processor architecture, `amd64` or `arm64`.
pub const ARCH: &str = "kubernetes.io/arch";
/// Operating system, `linux` or `windows`.
pub const OS: &str = "kubernetes.io/os";
/// Windows build of a node.
pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
/// `spot`, `on-demand` or `reserved`.
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
/// The pool a node belongs to.
pub const POOL: &str = "karpenter.sh/nodepool";
/// The node class from which a node was created.
pub const NODE_CLASS: &str = "karpenter.k8s.aws/ec2nodeclass";
/// The name of a node in a node affinity term (`matchFields: metadata.name`). No label can have
/// this name because it has no domain.
pub const NODE_NAME: &str = "metadata.name";
/// `true` once a node is registered.
pub const REGISTERED: &str = "karpenter.sh/registered";
/// `true` once a node is initialized.
pub const INITIALIZED: &str = "karpenter.sh/initialized";
/// Set on a node whose taints the daemon must leave as they are.
pub const DO_NOT_SYNC_TAINTS: &str = "karpenter.sh/do-not-sync-taints";
/// Annotation of a pod or node that must not be disrupted: `true` or a duration.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// The Outrigger name of the same annotation.
pub const DO_NOT_DISRUPT_ALIAS: &str = "outrigger.dev/do-not-disrupt";
/// Annotation of a node that Cluster Autoscaler must not scale down: `true`.
pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// Annotation of a pod: whether Cluster Autoscaler may evict it, `true` or `false`.
pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// Annotation of a pod: comma-separated names of its local volumes that may be lost.
pub const SAFE_LOCAL_VOLUMES: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
/// Annotation of a pod: its deletion cost to its ReplicaSet.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Taint of a node that is not registered yet (`NoExecute`; `NoSchedule` if pods are bound to it
/// before registration).
pub const TAINT_UNREGISTERED: &str = "karpenter.sh/unregistered";
/// Taint of a node that is being disrupted (`NoSchedule`).
pub const TAINT_DISRUPTED: &str = "karpenter.sh/disrupted";
/// Label that removes a disrupted node from external load balancers.
pub const EXCLUDE_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The value of [`EXCLUDE_BALANCERS`] that Outrigger writes, the same as Karpenter's.
pub const EXCLUDED_BY: &str = "karpenter";
/// The installation that manages a node.
pub const MANAGED_BY: &str = "outrigger.dev/managed-by";
/// The provider of an EKS node: `auto` for EKS Auto Mode.
pub const COMPUTE_TYPE: &str = "eks.amazonaws.com/compute-type";
/// The capacity reservation a node's instance is in.
pub const RESERVATION_ID: &str = "karpenter.k8s.aws/capacity-reservation-id";
/// The kind of this reservation: `default` or `capacity-block`.
pub const RESERVATION_TYPE: &str = "karpenter.k8s.aws/capacity-reservation-type";
/// Whether the owner of the reservation can reclaim its instances: `true` or `false`.
pub const RESERVATION_INTERRUPTIBLE: &str = "karpenter.k8s.aws/capacity-reservation-interruptible";
/// ID of a node's zone, the same in every account.
pub const ZONE_ID: &str = "topology.k8s.aws/zone-id";
/// The placement group of a node's instance.
pub const PLACEMENT_GROUP_ID: &str = "karpenter.k8s.aws/placement-group-id";
/// The partition of a node's placement group, starting at 1.
pub const PLACEMENT_GROUP_PARTITION: &str = "karpenter.k8s.aws/placement-group-partition";
/// Annotation: Outrigger created the Node before its kubelet registered. Registration removes it.
pub const AWAITING_KUBELET: &str = "outrigger.dev/awaiting-kubelet";
/// The name of [`AWAITING_KUBELET`] in earlier versions: read and removed, never written.
pub const AWAITING_KUBELET_FORMER: &str = "outrigger.dev/awaited";
/// Annotation: the claim of a node.
pub const CLAIM: &str = "outrigger.dev/claim";
/// Annotation: why a node is disrupted, written together with the disrupted taint.
pub const DISRUPTION_REASON: &str = "outrigger.dev/disruption-reason";
/// Annotation: when a draining node is terminated, even if pods remain (RFC 3339). The time is only
/// ever moved earlier.
pub const TERMINATION_AT: &str = "karpenter.sh/nodeclaim-termination-timestamp";
/// Finalizer of a Node: on deletion, the node is drained and its instance terminated first.
pub const FINALIZER: &str = "karpenter.sh/termination";
/// Annotation: the cluster for which a node was created, as configured. Nodes launched by version
/// 0.1 lack it.
pub const CLUSTER: &str = "outrigger.dev/cluster";
/// Annotation: when a node was initialized (RFC 3339).
pub const INITIALIZED_AT: &str = "outrigger.dev/initialized-at";
/// Annotation: hash of the pool template from which a node was created, `v1:…`.
pub const POOL_HASH: &str = "outrigger.dev/pool-hash";
/// Annotation: hash of the node class from which a node was created, `v1:…`.
pub const NODE_CLASS_HASH: &str = "outrigger.dev/node-class-hash";

/// Whether a node's host is shared or dedicated: `default` or `dedicated`.
pub const TENANCY: &str = "karpenter.k8s.aws/instance-tenancy";
/// The size of an instance type: the part of its name after the dot.
pub const INSTANCE_SIZE: &str = "karpenter.k8s.aws/instance-size";
/// Number of GPUs of a type. Types without GPUs lack the label.
pub const GPU_COUNT: &str = "karpenter.k8s.aws/instance-gpu-count";
/// Number of accelerators of a type. Types without accelerators lack the label.
pub const ACCELERATOR_COUNT: &str = "karpenter.k8s.aws/instance-accelerator-count";

/// Elastic fabric adapters, as a resource.
pub const EFA: &str = "vpc.amazonaws.com/efa";
/// Nitro enclaves, as a resource.
pub const ENCLAVES: &str = "eks.amazonaws.com/nitro-sandbox";

/// Prefix of the resource that counts volumes, followed by the name of the CSI driver.
pub const ATTACHABLE: &str = "attachable-volumes-csi-";

/// Prefix of the hardware labels of AWS instance types.
pub const AWS_PREFIX: &str = "karpenter.k8s.aws/";

/// Labels that every instance type defines, possibly as absent, so that a pod that requires one is
/// not placed on a node without it. A pool or a node class determines the other well-known labels.
/// Source: spec/scheduling.md §2.2 (WellKnownLabels), spec/aws.md §4.2.
pub const OF_TYPES: [&str; 34] = [
    ZONE,
    REGION,
    INSTANCE_TYPE,
    ARCH,
    OS,
    CAPACITY_TYPE,
    WINDOWS_BUILD,
    "eks.amazonaws.com/nitro-sandbox",
    RESERVATION_ID,
    RESERVATION_INTERRUPTIBLE,
    RESERVATION_TYPE,
    ACCELERATOR_COUNT,
    "karpenter.k8s.aws/instance-accelerator-manufacturer",
    "karpenter.k8s.aws/instance-accelerator-name",
    "karpenter.k8s.aws/instance-capability-flex",
    "karpenter.k8s.aws/instance-category",
    "karpenter.k8s.aws/instance-cpu",
    "karpenter.k8s.aws/instance-cpu-manufacturer",
    "karpenter.k8s.aws/instance-cpu-sustained-clock-speed-mhz",
    "karpenter.k8s.aws/instance-ebs-bandwidth",
    "karpenter.k8s.aws/instance-encryption-in-transit-supported",
    "karpenter.k8s.aws/instance-family",
    "karpenter.k8s.aws/instance-generation",
    GPU_COUNT,
    "karpenter.k8s.aws/instance-gpu-manufacturer",
    "karpenter.k8s.aws/instance-gpu-memory",
    "karpenter.k8s.aws/instance-gpu-name",
    "karpenter.k8s.aws/instance-hypervisor",
    "karpenter.k8s.aws/instance-local-nvme",
    "karpenter.k8s.aws/instance-memory",
    "karpenter.k8s.aws/instance-network-bandwidth",
    INSTANCE_SIZE,
    "karpenter.k8s.aws/instance-tenancy",
    "karpenter.k8s.aws/nitro-sandbox",
];

/// The labels of [`OF_TYPES`] that only nodes in a reservation have.
pub const OF_RESERVATIONS: [&str; 3] =
    [RESERVATION_ID, RESERVATION_TYPE, RESERVATION_INTERRUPTIBLE];

/// The labels of [`OF_TYPES`] that the offering determines.
pub const OF_OFFERINGS: [&str; 5] =
    [ZONE, CAPACITY_TYPE, RESERVATION_ID, RESERVATION_TYPE, RESERVATION_INTERRUPTIBLE];

/// Labels that a launch determines from the requirements of the pool and its pods. Every type
/// allows several values.
pub const OF_LAUNCHES: [&str; 2] = [TENANCY, PLACEMENT_GROUP_PARTITION];

/// Labels that a pool or a node class determines: pool, zone ID and placement group. Source: as
/// [`OF_TYPES`].
const OF_NODES: [&str; 5] =
    [POOL, NODE_CLASS, ZONE_ID, PLACEMENT_GROUP_ID, PLACEMENT_GROUP_PARTITION];

/// Returns whether a pod may require a label that no pool defines. The whole key must match: a key
/// that only resembles an AWS label would never be set, and its pod would trigger new nodes
/// forever.
pub fn is_well_known(key: &str) -> bool {
    OF_TYPES.contains(&key) || OF_NODES.contains(&key)
}

/// Returns why a pool or pod must not set or require a label. Source: spec/scheduling.md §1.4 (b),
/// spec/aws.md §4.2.
pub fn label_restriction(key: &str) -> Option<&'static str> {
    if is_well_known(key) {
        return None;
    }
    if key == HOSTNAME {
        return Some("kubernetes.io/hostname is not known before a node exists");
    }
    let (domain, _) = key.split_once('/')?;
    if domain == "karpenter.sh" || domain.ends_with(".karpenter.sh") {
        return Some("the karpenter.sh domain is reserved");
    }
    (domain == "karpenter.k8s.aws").then_some("there is no such label in its domain")
}

/// Suggests the label that an undefined key was probably meant to be: one of `labels`, or a
/// well-known label. The name within the domain has the most weight, because users often omit
/// domains.
pub fn suggested_label<'a>(key: &str, labels: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // The time of the comparison is quadratic in the length of the keys. Longer keys are not
    // compared.
    const LENGTH_MAX: usize = 64;
    if key.len() > LENGTH_MAX {
        return None;
    }
    labels
        .chain(OF_NODES)
        .chain(OF_TYPES)
        .filter(|other| *other != key && other.len() <= LENGTH_MAX)
        .filter_map(|other| Some((spelling_distance(key, other)?, other)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other)
}

/// Number of characters in which a key differs from a label. `None` if it resembles the label too
/// little to be a typing error. A key without a domain is compared with the name only.
fn spelling_distance(key: &str, label: &str) -> Option<usize> {
    // One character in five may be wrong.
    const WRONG_MAX: usize = 5;
    let [key_name, label_name] =
        [key, label].map(|key| key.rsplit_once('/').map_or(key, |(_, name)| name));
    if key_name == label_name {
        return Some(0);
    }
    let whole = strsim::osa_distance(key, label);
    let short = if key.contains('/') { whole } else { strsim::osa_distance(key_name, label_name) };
    let length = if short < whole { key_name.len() } else { key.len() };
    (short * WRONG_MAX <= length).then_some(short)
}

/// The stable name of a label that Kubernetes renamed, or the key itself.
pub fn normalized_key(key: &str) -> &str {
    match key {
        "failure-domain.beta.kubernetes.io/zone" | "topology.ebs.csi.aws.com/zone" => ZONE,
        "failure-domain.beta.kubernetes.io/region" => REGION,
        "beta.kubernetes.io/arch" => ARCH,
        "beta.kubernetes.io/os" => OS,
        "beta.kubernetes.io/instance-type" => INSTANCE_TYPE,
        other => other,
    }
}
