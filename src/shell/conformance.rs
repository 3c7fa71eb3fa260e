//! What every provider has to do, as `shell/provider.rs` says it: one suite, held against each.
//! It must not know which provider it holds.

pub(crate) mod checks;

pub(crate) mod subjects;

mod proof;

#[cfg(feature = "aws")]
mod ec2;
