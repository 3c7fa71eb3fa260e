//! Rules for strings that leave the program: control characters and YAML scalars.

// Control characters and length limits.
pub mod sanitize;
// YAML scalars in block style.
pub(crate) mod yaml;
