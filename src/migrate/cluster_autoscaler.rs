//! Converts Cluster Autoscaler to HCL: its flags, node groups and launch templates.
//!
//! ```text
//! Deployment ─ deployment, command_line ─▶ words ─ flags ─▶ values ─ cluster, scale_down ─▶ blocks
//! AWS CLI output ─ node_groups ─▶ groups, templates ─ instance_requirements, pool, node_class ─▶
//! blocks ─ validate, format ─▶ HCL (karpenter::import)
//! ```
//!
//! Each flag is one line of `migrate/cluster_autoscaler/flags.tsv`. A flag that cannot be converted
//! is a `DroppedField`, as for Karpenter objects.

// The modules are ordered by dependency: a module uses only modules above it.

// Command line parser.
mod command_line;
// The flag table and parsed flags.
mod flags;
// The Deployment of Cluster Autoscaler.
mod deployment;
// Auto Scaling groups and EKS node groups, from AWS CLI.
mod node_groups;
// Scale-down flags of a pool.
mod scale_down;
// Flags of the cluster and scheduler blocks.
mod cluster;
// AWS fields without an argument.
mod unsupported_fields;
// Instance types of a group, as requirements.
mod instance_requirements;
// Launch template, image and user data of a group.
mod launch_source;
// A group's launch template as a node class.
mod node_class;
// A group as a pool.
mod pool;
// The import as a whole.
pub mod import;
