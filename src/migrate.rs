//! Conversion of the configuration of other autoscalers to HCL, and of HCL to Karpenter objects.

// Fields that were not converted.
pub(crate) mod dropped;
// HCL output tree.
pub(crate) mod hcl;
// Quantities, durations and prices in HCL.
pub(crate) mod format_units;
// Conversion by field tables, in both directions.
pub(crate) mod field_mapping;
// Reader for Kubernetes manifests.
pub(crate) mod manifests;
// Karpenter objects from and to HCL.
pub mod karpenter;
// Cluster Autoscaler flags and node groups as HCL.
pub mod cluster_autoscaler;
