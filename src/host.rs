//! Clock and files of the host, and sanitized text.

// Wall clock, monotonic clock, entropy.
pub(crate) mod clock;
// Sanitized strings from external sources.
pub(crate) mod text;
// Configuration files, directories, variables.
pub(crate) mod files;
