//! Outrigger decides which nodes a Kubernetes cluster needs, and gets them, from outside.
//! It must not know anything about the host it runs on, except in `host` and above.

// Floors, lowest first: a module names only those above it in this list (tests/it/tidy.rs).

pub mod model;

pub mod catalog;

pub mod text;

pub mod bootstrap;

pub mod config;

#[cfg(feature = "cli")]
pub mod host;

pub mod coordination;

pub mod state;

pub mod kubernetes_convert;

pub mod scheduling;

pub mod disruption;

pub mod plan;

pub mod engine;

pub mod ec2;

pub mod fleet;

pub mod sim;

pub mod migrate;

#[cfg(feature = "daemon")]
pub mod shell;

#[cfg(feature = "cli")]
pub mod cli;

// What is not pure: the host's clock and files, then the only async and the only sockets.
