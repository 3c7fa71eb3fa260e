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

pub(crate) mod loss;

pub(crate) mod text;

pub(crate) mod tree;

pub(crate) mod amounts;

pub(crate) mod carry;

mod blank;

mod tables;

mod require;

pub(crate) mod documents;

pub mod import;

mod spell;

mod yaml;

pub mod export;

pub use documents::DocumentError;
pub use loss::Loss;
