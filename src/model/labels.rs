//! The labels, annotations, taints and tags that Kubernetes, Karpenter and Outrigger agree on.
//! It must not know what is done with them.
//!
//! `karpenter.sh/*` is kept where workloads and dashboards rely on it; only what has no Karpenter
//! equivalent is named `outrigger.dev/*`.

use std::collections::BTreeMap;

/// Labels, annotations or tags: sorted, so that everything derived from them is deterministic.
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
/// The node class a node was made from.
pub const NODE_CLASS: &str = "karpenter.k8s.aws/ec2nodeclass";
/// `true` once a node is registered.
pub const REGISTERED: &str = "karpenter.sh/registered";
/// `true` once a node is initialized.
pub const INITIALIZED: &str = "karpenter.sh/initialized";
/// Set on a node whose taints the daemon must leave as they are.
pub const DO_NOT_SYNC_TAINTS: &str = "karpenter.sh/do-not-sync-taints";
/// Annotation of a pod or node that must not be disrupted: `true` or a duration.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// The same in our own words.
pub const DO_NOT_DISRUPT_ALIAS: &str = "outrigger.dev/do-not-disrupt";
/// Taint of a node that has not been registered yet (`NoExecute`).
pub const TAINT_UNREGISTERED: &str = "karpenter.sh/unregistered";
/// Taint of a node that is leaving (`NoSchedule`).
pub const TAINT_DISRUPTED: &str = "karpenter.sh/disrupted";
/// Label that takes a leaving node out of external load balancers.
pub const EXCLUDE_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The installation that manages a node.
pub const MANAGED_BY: &str = "outrigger.dev/managed-by";
/// Annotation: the claim a node fulfils.
pub const CLAIM: &str = "outrigger.dev/claim";
/// Annotation: why a node is leaving, written together with the disrupted taint.
pub const DISRUPTION_REASON: &str = "outrigger.dev/disruption-reason";
/// Annotation: when a node was initialized (RFC 3339).
pub const INITIALIZED_AT: &str = "outrigger.dev/initialized-at";
/// Annotation: hash of the pool template a node was made from, `v1:…`.
pub const POOL_HASH: &str = "outrigger.dev/pool-hash";
/// Annotation: hash of the node class a node was made from, `v1:…`.
pub const NODE_CLASS_HASH: &str = "outrigger.dev/node-class-hash";

/// The hardware labels of AWS instance types share this prefix.
pub const AWS_PREFIX: &str = "karpenter.k8s.aws/";

/// Labels a pod may ask for although no pool names them: every instance type defines them.
/// Source: spec/scheduling.md §2.2 (WellKnownLabels), spec/aws.md §4.2.
pub fn is_well_known(key: &str) -> bool {
    matches!(
        key,
        POOL | ZONE
            | REGION
            | INSTANCE_TYPE
            | ARCH
            | OS
            | CAPACITY_TYPE
            | WINDOWS_BUILD
            | "topology.k8s.aws/zone-id"
    ) || key.starts_with(AWS_PREFIX)
}

/// Labels that no pool and no pod may set or ask for, with the reason.
/// Source: spec/scheduling.md §1.4 (b).
pub fn restriction(key: &str) -> Option<&'static str> {
    if is_well_known(key) {
        return None;
    }
    if key == HOSTNAME {
        return Some("kubernetes.io/hostname is not known before a node exists");
    }
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    if domain == "karpenter.sh" || domain.ends_with(".karpenter.sh") {
        return Some("the karpenter.sh domain is reserved");
    }
    None
}

/// The stable name of a label that Kubernetes renamed, or the key itself.
pub fn normalized(key: &str) -> &str {
    match key {
        "failure-domain.beta.kubernetes.io/zone" | "topology.ebs.csi.aws.com/zone" => ZONE,
        "failure-domain.beta.kubernetes.io/region" => REGION,
        "beta.kubernetes.io/arch" => ARCH,
        "beta.kubernetes.io/os" => OS,
        "beta.kubernetes.io/instance-type" => INSTANCE_TYPE,
        other => other,
    }
}
