//! Cluster Autoscaler as HCL: its flags, the groups that it scales, what they launch.
//! It must not know where any of it is read, nor where the HCL goes.
//!
//! ```text
//! Deployment ─ program ─▶ words ─ flags ─▶ what was said ─ cluster, leaving ─▶ blocks
//! JSON of AWS ─ groups ─▶ group, template ─ shape, pool, class ────────────▶ blocks
//!                                               blocks ─ sound, format ─▶ HCL (karpenter::import)
//! ```
//!
//! What becomes of each flag is one row of `autoscaler/flags.tsv`; what cannot be carried over is a
//! `Loss`, as it is for Karpenter's objects.

// The order is the architecture: a module names only those above it.

mod words;

mod flags;

mod program;

mod groups;

mod leaving;

mod cluster;

mod fields;

mod shape;

mod image;

mod class;

mod pool;

pub mod import;
