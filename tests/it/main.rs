//! The integration test binary; docs/TESTING.md describes its suites.

mod tidy;
mod named_tests;
mod config;
mod engine;
mod fleet;
mod ec2;
mod iam_policy;
mod sim;
mod scheduling;
mod overlay;
mod standing_capacity;
mod budgets;
mod disruption;
mod drift;
mod catalog;
mod label_requirements;
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
mod cost_bound;
#[cfg(feature = "cli")]
mod binary;
#[cfg(feature = "cli")]
mod commands;
#[cfg(feature = "daemon")]
mod test_script;
#[cfg(feature = "daemon")]
mod plane;
#[cfg(feature = "aws")]
mod aws;
#[cfg(feature = "daemon")]
mod end_to_end;
