//! Karpenter's objects as HCL, and a configuration as Karpenter's objects.
//! It must not know where any of it is read or written.
//!
//! Both ways go by the same tables (`tables`), from field to argument and back; what they cannot
//! carry is a `Loss`, said beside the block it would be in. What Karpenter can say of a
//! configuration comes back as it was.
//!
//! ```text
//! objects ─ import ─▶ blocks ─ sound, format ─▶ HCL        (tables, require)
//! objects ◀─ export ─ blocks ◀─ spell ─ Cluster ◀─ config  (tables, require)
//! ```

// The order is the architecture: a module names only those above it. What the way in from Cluster
// Autoscaler shares is open to the crate.

mod placeholders;
mod field_tables;
mod requirements;
pub mod import;
mod to_hcl;
pub mod export;

pub use crate::migrate::dropped::DroppedField;
pub use crate::migrate::manifests::DocumentError;
