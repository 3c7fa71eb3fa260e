//! What every provider has to do, as `providers.rs` says it: one suite, held against each.
//! It must not know which provider it holds.

pub(crate) mod checks;
pub(crate) mod providers;
mod mutations;
#[cfg(feature = "aws")]
mod ec2;
