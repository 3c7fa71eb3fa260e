//! The tables that map Karpenter fields to arguments and blocks.
//!
//! The fields are those of `karpenter.sh/v1` and `karpenter.k8s.aws/v1`, in the order of the HCL.

use crate::migrate::field_mapping::FieldKind::{
    Allowance, Block, Blocks, ByHand, Duration, Filled, Flag, Map, Number, Quantities, Seconds,
    Size, SomeOf, Text, Texts, Whole, Words,
};
use crate::migrate::field_mapping::{FieldMapping, field_mappings};

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
pub(super) const POOL: &[FieldMapping] = field_mappings! {
    "template.spec.nodeClassRef" => "node_class", ByHand;
    "weight" => "weight", Whole;
    "replicas" => "replicas", Whole;
    "template.metadata.labels" => "labels", Map;
    "template.metadata.annotations" => "annotations", Map;
    "limits" => "limits", Quantities;
    "template.spec.expireAfter" => "expire_after", Duration;
    "template.spec.terminationGracePeriod" => "termination_grace_period", Duration;
    "template.spec.requirements" => "require", ByHand;
    "template.spec.taints" => "taint", Blocks(Some("key"), TAINT);
    "template.spec.startupTaints" => "startup_taint", Blocks(Some("key"), TAINT);
    "disruption.consolidationPolicy" => "disruption.consolidation", Words(POLICIES);
    "disruption.consolidateAfter" => "disruption.consolidate_after", Duration;
    "disruption.budgets" => "disruption.budget", Blocks(None, BUDGET);
};

const TAINT: &[FieldMapping] = field_mappings! {
    "effect" => "effect", Text;
    "value" => "value", Filled;
};

pub(super) const BUDGET: &[FieldMapping] = field_mappings! {
    "nodes" => "nodes", Allowance;
    "reasons" => "reasons", SomeOf(REASONS);
    "schedule" => "schedule", Text;
    "duration" => "duration", Duration;
};

/// The spec of an EC2NodeClass.
pub(super) const NODE_CLASS: &[FieldMapping] = field_mappings! {
    "amiFamily" => "ami_family", Words(FAMILIES);
    "role" => "role", Text;
    "instanceProfile" => "instance_profile", Text;
    "associatePublicIPAddress" => "associate_public_ip", Flag;
    "ipPrefixCount" => "ip_prefix_count", Whole;
    "tags" => "tags", Map;
    "detailedMonitoring" => "detailed_monitoring", Flag;
    "instanceStorePolicy" => "instance_store_policy", Words(&[("RAID0", "raid0")]);
    "context" => "context", Text;
    "amiSelectorTerms" => "ami", Blocks(None, AMI);
    "subnetSelectorTerms" => "subnet", Blocks(None, SUBNET);
    "securityGroupSelectorTerms" => "security_group", Blocks(None, SECURITY_GROUP);
    "capacityReservationSelectorTerms" => "capacity_reservation", Blocks(None, RESERVATION);
    "placementGroupSelector" => "placement_group", Block(PLACEMENT_GROUP);
    "blockDeviceMappings" => "block_device", Blocks(Some("deviceName"), DISK);
    "metadataOptions" => "metadata_options", Block(METADATA);
    "networkInterfaces" => "network_interface", Blocks(None, INTERFACE);
    "connectionTracking" => "connection_tracking", Block(TRACKING);
    "cpuOptions" => "cpu_options", Block(CPU);
    "kubelet" => "kubelet", ByHand;
    "userData" => "user_data", Text;
};

const AMI: &[FieldMapping] = field_mappings! {
    "alias" => "alias", Text;
    "id" => "id", Text;
    "ssmParameter" => "ssm_parameter", Text;
    "name" => "name", Text;
    "owner" => "owner", Text;
    "tags" => "tags", Map;
};

const SUBNET: &[FieldMapping] = field_mappings! {
    "id" => "id", Text;
    "tags" => "tags", Map;
};

const SECURITY_GROUP: &[FieldMapping] = field_mappings! {
    "id" => "id", Text;
    "name" => "name", Text;
    "tags" => "tags", Map;
};

const RESERVATION: &[FieldMapping] = field_mappings! {
    "id" => "id", Text;
    "ownerID" => "owner", Text;
    "instanceMatchCriteria" => "instance_match_criteria", Text;
    "tags" => "tags", Map;
};

const PLACEMENT_GROUP: &[FieldMapping] = field_mappings! {
    "id" => "id", Text;
    "name" => "name", Text;
};

const DISK: &[FieldMapping] = field_mappings! {
    "ebs.volumeSize" => "volume_size", Size;
    "ebs.volumeType" => "volume_type", Text;
    "ebs.iops" => "iops", Whole;
    "ebs.throughput" => "throughput", Whole;
    "ebs.encrypted" => "encrypted", Flag;
    "ebs.kmsKeyID" => "kms_key_id", Text;
    "ebs.snapshotID" => "snapshot_id", Text;
    "ebs.volumeInitializationRate" => "volume_initialization_rate", Whole;
    "ebs.deleteOnTermination" => "delete_on_termination", Flag;
    "rootVolume" => "root_volume", Flag;
};

const METADATA: &[FieldMapping] = field_mappings! {
    "httpEndpoint" => "http_endpoint", Text;
    "httpProtocolIPv6" => "http_protocol_ipv6", Text;
    "httpPutResponseHopLimit" => "http_put_response_hop_limit", Whole;
    "httpTokens" => "http_tokens", Text;
};

const INTERFACE: &[FieldMapping] = field_mappings! {
    "networkCardIndex" => "network_card_index", Whole;
    "deviceIndex" => "device_index", Whole;
    "interfaceType" => "interface_type", Text;
};

const TRACKING: &[FieldMapping] = field_mappings! {
    "tcpEstablishedTimeout" => "tcp_established_timeout", Seconds;
    "udpStreamTimeout" => "udp_stream_timeout", Seconds;
    "udpTimeout" => "udp_timeout", Seconds;
};

const CPU: &[FieldMapping] = field_mappings! {
    "nestedVirtualization" => "nested_virtualization", Text;
};

/// The kubelet settings. All other fields are `extra`.
pub(super) const KUBELET: &[FieldMapping] = field_mappings! {
    "maxPods" => "max_pods", Whole;
    "podsPerCore" => "pods_per_core", Whole;
    "clusterDNS" => "cluster_dns", Texts;
    "systemReserved" => "system_reserved", Map;
    "kubeReserved" => "kube_reserved", Map;
    "evictionHard" => "eviction_hard", Map;
    "evictionSoft" => "eviction_soft", Map;
    "evictionSoftGracePeriod" => "eviction_soft_grace_period", Map;
    "evictionMaxPodGracePeriod" => "eviction_max_pod_grace_period", Whole;
    "imageGCHighThresholdPercent" => "image_gc_high_threshold_percent", Whole;
    "imageGCLowThresholdPercent" => "image_gc_low_threshold_percent", Whole;
    "cpuCFSQuota" => "cpu_cfs_quota", Flag;
};

/// The spec of a NodeOverlay.
pub(super) const OVERLAY: &[FieldMapping] = field_mappings! {
    "weight" => "weight", Whole;
    "price" => "price", Number;
    "priceAdjustment" => "price_adjustment", Text;
    "capacity" => "capacity", Quantities;
    "requirements" => "require", ByHand;
};

/// The spec of a CapacityBuffer.
pub(super) const BUFFER: &[FieldMapping] = field_mappings! {
    "replicas" => "replicas", Whole;
    "percentage" => "percentage", Whole;
    "limits" => "limits", Quantities;
    "podTemplateRef" => "pod", ByHand;
    "scalableRef" => "scalable", ByHand;
    "provisioningStrategy" => "", ByHand;
};
