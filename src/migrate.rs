//! Conversion of the configuration of other autoscalers to HCL, and of HCL to Karpenter objects.

pub(crate) mod dropped;
pub(crate) mod hcl;
pub(crate) mod format_units;
pub(crate) mod field_mapping;
pub(crate) mod manifests;
pub(crate) mod yaml_writer;
pub mod karpenter;
pub mod cluster_autoscaler;
