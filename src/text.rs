//! Rules for text that leaves the program: control characters and YAML scalars.

pub mod sanitize;
pub(crate) mod yaml;
