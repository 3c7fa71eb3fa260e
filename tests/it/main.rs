//! The integration test binary; docs/TESTING.md describes its suites.

mod tidy;
mod named;
mod config;
mod engine;
mod fleet;
mod ec2;
mod rights;
mod sim;
mod solve;
mod overlay;
mod standing;
mod budgets;
mod disrupt;
mod drifting;
mod catalog;
mod algebra;
mod conformance;
mod coverage;
mod explain;
mod diagnostics;
mod monitoring;
mod karpenter;
mod autoscaler;
mod cost;
mod bootstrap;
#[cfg(feature = "bound")]
mod bound;
#[cfg(feature = "cli")]
mod binary;
#[cfg(feature = "cli")]
mod verbs;
#[cfg(feature = "daemon")]
mod driven;
#[cfg(feature = "daemon")]
mod plane;
#[cfg(feature = "aws")]
mod wire;
#[cfg(feature = "daemon")]
mod door;
