//! Rules for strings that leave the program: control characters and YAML.

// Control characters and length limits.
pub mod sanitize;
// YAML: mappings, and documents with comments.
pub(crate) mod yaml;
