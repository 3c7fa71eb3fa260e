//! JSON types of the watched Kubernetes objects, with only the fields that are read.

use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::kubernetes_convert::quantity::Quantities;
use crate::model::labels::{DELETION_COST, Labels};

/// Reads `null`, which Go writes for some empty values, as the default.
fn null<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Declares a struct of JSON fields, each of which may be absent or `null`.
macro_rules! json {
    ($(
        $(#[$meta:meta])*
        struct $name:ident { $($(#[$attr:meta])* $field:ident: $type:ty,)* }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub(crate) struct $name {
            $($(#[$attr])* #[serde(deserialize_with = "null")] pub(crate) $field: $type,)*
        }
    )*};
}

json! {
    struct Meta {
        name: String,
        namespace: String,
        uid: String,
        resource_version: String,
        generation: i64,
        creation_timestamp: Option<Timestamp>,
        deletion_timestamp: Option<Timestamp>,
        deletion_grace_period_seconds: i64,
        labels: Labels,
        annotations: Annotations,
        owner_references: Vec<OwnerReference>,
        finalizers: Vec<String>,
    }

    struct OwnerReference {
        kind: String,
        name: String,
        uid: String,
        controller: bool,
    }

    struct Pod {
        metadata: Meta,
        spec: PodSpec,
        status: PodStatus,
    }

    struct PodSpec {
        node_name: String,
        scheduler_name: String,
        priority: i32,
        priority_class_name: String,
        containers: Vec<Container>,
        init_containers: Vec<Container>,
        resources: ContainerResources,
        overhead: Quantities,
        node_selector: Labels,
        affinity: Affinity,
        tolerations: Vec<Toleration>,
        topology_spread_constraints: Vec<SpreadConstraint>,
        volumes: Vec<PodVolume>,
        resource_claims: Vec<Present>,
        scheduling_gates: Vec<Present>,
        scheduling_group: SchedulingGroup,
        termination_grace_period_seconds: Option<i64>,
    }

    struct SchedulingGroup {
        pod_group_name: String,
    }

    struct Container {
        name: String,
        restart_policy: String,
        resources: ContainerResources,
        ports: Vec<ContainerPort>,
    }

    struct ContainerResources {
        requests: Quantities,
        limits: Quantities,
    }

    struct ContainerPort {
        host_port: i64,
        #[serde(rename = "hostIP")]
        host_ip: String,
        protocol: String,
    }

    struct Affinity {
        node_affinity: NodeAffinity,
        pod_affinity: PodAffinity,
        pod_anti_affinity: PodAffinity,
    }

    struct NodeAffinity {
        #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
        required: Option<NodeSelector>,
        #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
        preferred: Vec<PreferredNode>,
    }

    struct PreferredNode {
        weight: i64,
        preference: NodeSelectorTerm,
    }

    struct NodeSelector {
        node_selector_terms: Vec<NodeSelectorTerm>,
    }

    struct NodeSelectorTerm {
        match_expressions: Vec<Expression>,
        match_fields: Vec<Expression>,
    }

    struct Expression {
        key: String,
        operator: String,
        values: Vec<String>,
    }

    struct PodAffinity {
        #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
        required: Vec<PodAffinityTerm>,
        #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
        preferred: Vec<PreferredPods>,
    }

    struct PodAffinityTerm {
        label_selector: Option<LabelSelector>,
        namespaces: Vec<String>,
        namespace_selector: Option<LabelSelector>,
        topology_key: String,
        match_label_keys: Vec<String>,
        mismatch_label_keys: Vec<String>,
    }

    struct PreferredPods {
        weight: i64,
        pod_affinity_term: PodAffinityTerm,
    }

    struct Toleration {
        key: String,
        operator: String,
        value: String,
        effect: String,
    }

    struct SpreadConstraint {
        max_skew: i64,
        topology_key: String,
        when_unsatisfiable: String,
        label_selector: Option<LabelSelector>,
        min_domains: Option<i64>,
        node_affinity_policy: String,
        node_taints_policy: String,
        match_label_keys: Vec<String>,
    }

    struct PodVolume {
        name: String,
        persistent_volume_claim: Option<ClaimReference>,
        ephemeral: Option<Present>,
        empty_dir: Option<EmptyDir>,
        host_path: Option<Present>,
    }

    struct EmptyDir {
        medium: String,
    }

    struct ClaimReference {
        claim_name: String,
    }

    struct PodStatus {
        phase: String,
        nominated_node_name: String,
        start_time: Option<Timestamp>,
        conditions: Vec<Condition>,
        container_statuses: Vec<ContainerStatus>,
    }

    struct Condition {
        #[serde(rename = "type")]
        kind: String,
        status: String,
        reason: String,
        last_transition_time: Option<Timestamp>,
    }

    struct ContainerStatus {
        name: String,
        allocated_resources: Quantities,
        resources: ContainerResources,
    }

    struct Node {
        metadata: Meta,
        spec: NodeSpec,
        status: NodeStatus,
    }

    struct NodeSpec {
        #[serde(rename = "providerID")]
        provider_id: String,
        unschedulable: bool,
        taints: Vec<Taint>,
    }

    struct Taint {
        key: String,
        value: String,
        effect: String,
    }

    struct NodeStatus {
        capacity: Quantities,
        allocatable: Quantities,
        conditions: Vec<Condition>,
        node_info: NodeInfo,
    }

    struct NodeInfo {
        kubelet_version: String,
    }

    struct DaemonSet {
        metadata: Meta,
        spec: DaemonSetSpec,
    }

    struct DaemonSetSpec {
        template: PodTemplate,
    }

    struct PodTemplate {
        metadata: Meta,
        spec: PodSpec,
    }

    struct PodDisruptionBudget {
        metadata: Meta,
        spec: PdbSpec,
        status: PdbStatus,
    }

    struct PdbSpec {
        selector: Option<LabelSelector>,
        min_available: Option<Value>,
        max_unavailable: Option<Value>,
        unhealthy_pod_eviction_policy: String,
    }

    struct LabelSelector {
        match_labels: Labels,
        match_expressions: Vec<Expression>,
    }

    struct PdbStatus {
        observed_generation: i64,
        disruptions_allowed: i64,
        expected_pods: i64,
        current_healthy: i64,
        desired_healthy: i64,
    }

    #[cfg(feature = "daemon")]
    struct VolumeAttachment {
        metadata: Meta,
        spec: VolumeAttachmentSpec,
    }

    #[cfg(feature = "daemon")]
    struct VolumeAttachmentSpec {
        node_name: String,
        source: VolumeAttachmentSource,
    }

    #[cfg(feature = "daemon")]
    struct VolumeAttachmentSource {
        persistent_volume_name: String,
    }

    struct PersistentVolumeClaim {
        metadata: Meta,
        spec: VolumeClaimSpec,
        status: VolumeClaimStatus,
    }

    struct VolumeClaimSpec {
        volume_name: String,
        storage_class_name: String,
        access_modes: Vec<String>,
    }

    struct VolumeClaimStatus {
        phase: String,
    }

    struct PersistentVolume {
        metadata: Meta,
        spec: VolumeSpec,
    }

    struct VolumeSpec {
        csi: CsiSource,
        aws_elastic_block_store: Option<Present>,
        local: Option<Present>,
        host_path: Option<Present>,
        node_affinity: VolumeNodeAffinity,
    }

    struct CsiSource {
        driver: String,
    }

    struct VolumeNodeAffinity {
        required: Option<NodeSelector>,
    }

    struct StorageClass {
        metadata: Meta,
        provisioner: String,
        volume_binding_mode: String,
        allowed_topologies: Vec<TopologyTerm>,
    }

    struct TopologyTerm {
        match_label_expressions: Vec<TopologyExpression>,
    }

    struct TopologyExpression {
        key: String,
        values: Vec<String>,
    }

    struct CSINode {
        metadata: Meta,
        spec: CsiNodeSpec,
    }

    struct CsiNodeSpec {
        drivers: Vec<CsiDriver>,
    }

    struct CsiDriver {
        name: String,
        allocatable: Option<CsiAllocatable>,
    }

    struct CsiAllocatable {
        count: Option<u32>,
    }

    struct Namespace {
        metadata: Meta,
    }

    struct Service {
        metadata: Meta,
        spec: OfLabels,
    }

    struct ReplicationController {
        metadata: Meta,
        spec: OfLabels,
    }

    struct OfLabels {
        selector: Labels,
    }

    struct ReplicaSet {
        metadata: Meta,
        spec: OfSelector,
    }

    struct StatefulSet {
        metadata: Meta,
        spec: OfSelector,
    }

    struct OfSelector {
        selector: LabelSelector,
    }
}

/// A field of which only the presence is read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Present;

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// Pod annotations with the name of a group that must be scheduled together, in two generations of
/// Volcano.
pub(crate) const GROUPS: [&str; 2] =
    ["scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"];
/// Pod annotation with the number of pods in its Kueue group.
pub(crate) const GROUP_COUNT: &str = "kueue.x-k8s.io/pod-group-total-count";
/// Annotation of a bound volume claim.
pub(crate) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation of a volume claim with its storage class, instead of the field.
pub(crate) const STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Annotations that are read and are set by other programs.
const ANNOTATIONS: [&str; 6] =
    [DELETION_COST, GROUPS[0], GROUPS[1], GROUP_COUNT, BIND_COMPLETED, STORAGE_CLASS];

/// The annotations that are read. All others are skipped, because they can be long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Annotations(pub(crate) Labels);

impl Annotations {
    fn is_read(key: &str) -> bool {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        matches!(
            domain,
            "karpenter.sh"
                | "outrigger.dev"
                | "karpenter.k8s.aws"
                | "cluster-autoscaler.kubernetes.io"
        ) || ANNOTATIONS.contains(&key)
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut read = Labels::new();
                while let Some(key) = map.next_key::<String>()? {
                    if Annotations::is_read(&key) {
                        read.insert(key, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Annotations(read))
            }
        }

        deserializer.deserialize_map(Read)
    }
}
