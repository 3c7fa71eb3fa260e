//! The tables that map Karpenter fields to arguments and blocks.
//!
//! The fields are those of `karpenter.sh/v1` and `karpenter.k8s.aws/v1`, in the order of the HCL.

use crate::migrate::field_mapping::FieldKind::{
    Allowance, Block, Blocks, ByHand, Duration, Filled, Flag, Map, Number, Quantities, Seconds,
    Size, SomeOf, Text, Texts, Whole, Words,
};
use crate::migrate::field_mapping::{FieldMapping, row};

/// Consolidation policies.
pub(super) const POLICIES: &[(&str, &str)] = &[
    ("WhenEmpty", "empty"),
    ("WhenEmptyOrUnderutilized", "empty_or_underutilized"),
    ("Balanced", "balanced"),
];

const REASONS: &[(&str, &str)] =
    &[("Empty", "empty"), ("Underutilized", "underutilized"), ("Drifted", "drifted")];

/// Image families.
pub(super) const FAMILIES: &[(&str, &str)] = &[
    ("AL2", "al2"),
    ("AL2023", "al2023"),
    ("Bottlerocket", "bottlerocket"),
    ("Windows2019", "windows2019"),
    ("Windows2022", "windows2022"),
    ("Windows2025", "windows2025"),
    ("Custom", "custom"),
];

/// The spec of a NodePool.
pub(super) const POOL: &[FieldMapping] = &[
    row("template.spec.nodeClassRef", "node_class", ByHand),
    row("weight", "weight", Whole),
    row("replicas", "replicas", Whole),
    row("template.metadata.labels", "labels", Map),
    row("template.metadata.annotations", "annotations", Map),
    row("limits", "limits", Quantities),
    row("template.spec.expireAfter", "expire_after", Duration),
    row("template.spec.terminationGracePeriod", "termination_grace_period", Duration),
    row("template.spec.requirements", "require", ByHand),
    row("template.spec.taints", "taint", Blocks(Some("key"), TAINT)),
    row("template.spec.startupTaints", "startup_taint", Blocks(Some("key"), TAINT)),
    row("disruption.consolidationPolicy", "disruption.consolidation", Words(POLICIES)),
    row("disruption.consolidateAfter", "disruption.consolidate_after", Duration),
    row("disruption.budgets", "disruption.budget", Blocks(None, BUDGET)),
];

const TAINT: &[FieldMapping] = &[row("effect", "effect", Text), row("value", "value", Filled)];

pub(super) const BUDGET: &[FieldMapping] = &[
    row("nodes", "nodes", Allowance),
    row("reasons", "reasons", SomeOf(REASONS)),
    row("schedule", "schedule", Text),
    row("duration", "duration", Duration),
];

/// The spec of an EC2NodeClass.
pub(super) const NODE_CLASS: &[FieldMapping] = &[
    row("amiFamily", "ami_family", Words(FAMILIES)),
    row("role", "role", Text),
    row("instanceProfile", "instance_profile", Text),
    row("associatePublicIPAddress", "associate_public_ip", Flag),
    row("ipPrefixCount", "ip_prefix_count", Whole),
    row("tags", "tags", Map),
    row("detailedMonitoring", "detailed_monitoring", Flag),
    row("instanceStorePolicy", "instance_store_policy", Words(&[("RAID0", "raid0")])),
    row("context", "context", Text),
    row("amiSelectorTerms", "ami", Blocks(None, AMI)),
    row("subnetSelectorTerms", "subnet", Blocks(None, SUBNET)),
    row("securityGroupSelectorTerms", "security_group", Blocks(None, SECURITY_GROUP)),
    row("capacityReservationSelectorTerms", "capacity_reservation", Blocks(None, RESERVATION)),
    row("placementGroupSelector", "placement_group", Block(PLACEMENT_GROUP)),
    row("blockDeviceMappings", "block_device", Blocks(Some("deviceName"), DISK)),
    row("metadataOptions", "metadata_options", Block(METADATA)),
    row("networkInterfaces", "network_interface", Blocks(None, INTERFACE)),
    row("connectionTracking", "connection_tracking", Block(TRACKING)),
    row("cpuOptions", "cpu_options", Block(CPU)),
    row("kubelet", "kubelet", ByHand),
    row("userData", "user_data", Text),
];

const AMI: &[FieldMapping] = &[
    row("alias", "alias", Text),
    row("id", "id", Text),
    row("ssmParameter", "ssm_parameter", Text),
    row("name", "name", Text),
    row("owner", "owner", Text),
    row("tags", "tags", Map),
];

const SUBNET: &[FieldMapping] = &[row("id", "id", Text), row("tags", "tags", Map)];

const SECURITY_GROUP: &[FieldMapping] =
    &[row("id", "id", Text), row("name", "name", Text), row("tags", "tags", Map)];

const RESERVATION: &[FieldMapping] = &[
    row("id", "id", Text),
    row("ownerID", "owner", Text),
    row("instanceMatchCriteria", "instance_match_criteria", Text),
    row("tags", "tags", Map),
];

const PLACEMENT_GROUP: &[FieldMapping] = &[row("id", "id", Text), row("name", "name", Text)];

const DISK: &[FieldMapping] = &[
    row("ebs.volumeSize", "volume_size", Size),
    row("ebs.volumeType", "volume_type", Text),
    row("ebs.iops", "iops", Whole),
    row("ebs.throughput", "throughput", Whole),
    row("ebs.encrypted", "encrypted", Flag),
    row("ebs.kmsKeyID", "kms_key_id", Text),
    row("ebs.snapshotID", "snapshot_id", Text),
    row("ebs.volumeInitializationRate", "volume_initialization_rate", Whole),
    row("ebs.deleteOnTermination", "delete_on_termination", Flag),
    row("rootVolume", "root_volume", Flag),
];

const METADATA: &[FieldMapping] = &[
    row("httpEndpoint", "http_endpoint", Text),
    row("httpProtocolIPv6", "http_protocol_ipv6", Text),
    row("httpPutResponseHopLimit", "http_put_response_hop_limit", Whole),
    row("httpTokens", "http_tokens", Text),
];

const INTERFACE: &[FieldMapping] = &[
    row("networkCardIndex", "network_card_index", Whole),
    row("deviceIndex", "device_index", Whole),
    row("interfaceType", "interface_type", Text),
];

const TRACKING: &[FieldMapping] = &[
    row("tcpEstablishedTimeout", "tcp_established_timeout", Seconds),
    row("udpStreamTimeout", "udp_stream_timeout", Seconds),
    row("udpTimeout", "udp_timeout", Seconds),
];

const CPU: &[FieldMapping] = &[row("nestedVirtualization", "nested_virtualization", Text)];

/// The kubelet settings. All other fields are `extra`.
pub(super) const KUBELET: &[FieldMapping] = &[
    row("maxPods", "max_pods", Whole),
    row("podsPerCore", "pods_per_core", Whole),
    row("clusterDNS", "cluster_dns", Texts),
    row("systemReserved", "system_reserved", Map),
    row("kubeReserved", "kube_reserved", Map),
    row("evictionHard", "eviction_hard", Map),
    row("evictionSoft", "eviction_soft", Map),
    row("evictionSoftGracePeriod", "eviction_soft_grace_period", Map),
    row("evictionMaxPodGracePeriod", "eviction_max_pod_grace_period", Whole),
    row("imageGCHighThresholdPercent", "image_gc_high_threshold_percent", Whole),
    row("imageGCLowThresholdPercent", "image_gc_low_threshold_percent", Whole),
    row("cpuCFSQuota", "cpu_cfs_quota", Flag),
];

/// The spec of a NodeOverlay.
pub(super) const OVERLAY: &[FieldMapping] = &[
    row("weight", "weight", Whole),
    row("price", "price", Number),
    row("priceAdjustment", "price_adjustment", Text),
    row("capacity", "capacity", Quantities),
    row("requirements", "require", ByHand),
];

/// The spec of a CapacityBuffer.
pub(super) const BUFFER: &[FieldMapping] = &[
    row("replicas", "replicas", Whole),
    row("percentage", "percentage", Whole),
    row("limits", "limits", Quantities),
    row("podTemplateRef", "pod", ByHand),
    row("scalableRef", "scalable", ByHand),
    row("provisioningStrategy", "", ByHand),
];
