//! Providers, which launch instances: the interface, and one provider for each cloud.

// JSON between daemon and external clouds.
pub mod wire_format;
// JSON messages of the exec protocol.
pub mod exec_protocol;
// What a provider does, and the provider without instances.
#[cfg(feature = "daemon")]
pub(crate) mod interface;
// The simulated EC2.
#[cfg(feature = "daemon")]
pub(crate) mod simulated;
// Providers that are external programs.
#[cfg(feature = "daemon")]
pub(crate) mod exec;
// Amazon EC2.
#[cfg(feature = "aws")]
pub(crate) mod aws;
// Conformance tests of providers.
#[cfg(all(test, feature = "daemon"))]
pub(crate) mod conformance;
