//! Clock and files of the host, and sanitized text.

// Wall clock, monotonic clock, entropy.
#[cfg(feature = "cli")]
pub(crate) mod clock;
// Sanitized strings from external sources.
pub mod text;
// Configuration files, directories, variables.
#[cfg(feature = "cli")]
pub(crate) mod files;
