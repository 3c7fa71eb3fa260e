//! Cluster Autoscaler as HCL: its flags, the groups that it scales, what they launch.
//! It must not know where any of it is read, nor where the HCL goes.
//!
//! ```text
//! Deployment ─ program ─▶ words ─ flags ─▶ what was said ─ cluster, leaving ─▶ blocks
//! JSON of AWS ─ groups ─▶ group, template ─ shape, pool, class ────────────▶ blocks
//!                                               blocks ─ sound, format ─▶ HCL (karpenter::import)
//! ```
//!
//! Each flag is one row of `migrate/cluster_autoscaler/flags.tsv`; what cannot be converted is a
//! `DroppedField`, as it is for Karpenter's objects.

// The order is the architecture: a module names only those above it.

mod command_line;
mod flags;
mod deployment;
mod node_groups;
mod scale_down;
mod cluster;
mod unsupported_fields;
mod instance_requirements;
mod launch_source;
mod node_class;
mod pool;
pub mod import;
