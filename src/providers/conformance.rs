//! Conformance tests of the rules in `providers.rs`, for every provider.

// The checks.
pub(crate) mod checks;
// The providers under test.
pub(crate) mod providers;
// Faulty providers that each check must reject.
mod mutations;
// The EC2 provider against moto.
#[cfg(feature = "aws")]
mod ec2;
