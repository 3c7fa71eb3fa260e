//! Converts Karpenter objects to HCL, and a configuration to Karpenter objects.
//!
//! Import and export use the same tables (`field_tables`). A field that cannot be converted is a
//! `DroppedField`, reported next to its block. Settings that Karpenter supports are the same after
//! an export and an import.
//!
//! ```text
//! objects ─ import ─▶ blocks ─ validate, format ─▶ HCL      (field_tables, requirements)
//! objects ◀─ export ─ blocks ◀─ to_hcl ─ Cluster ◀─ config  (field_tables, requirements)
//! ```

// The modules are ordered by dependency: a module uses only modules above it. Modules that the
// import from Cluster Autoscaler also uses are visible in the crate.

// `${NAME}` placeholders in manifests.
mod placeholders;
// Karpenter fields and their HCL arguments.
mod field_tables;
// Requirements in the forms of Karpenter and of HCL.
mod requirements;
// Karpenter objects to HCL.
pub mod import;
// A configuration as HCL blocks, for the import.
mod to_hcl;
// HCL to Karpenter objects.
pub mod export;

pub use crate::migrate::dropped::DroppedField;
pub use crate::migrate::manifests::DocumentError;
