//! Outrigger decides which nodes a Kubernetes cluster needs, and gets them, from outside.
//! It must not know anything about the host it runs on, except in the shell.

// Floors, lowest first: a module names only those above it in this list (tests/it/tidy.rs).

pub mod model;

pub mod catalog;

pub mod bootstrap;

pub mod config;

pub mod karpenter;

pub mod autoscaler;

pub mod state;

pub mod solve;

pub mod disrupt;

pub mod plan;

pub mod engine;

pub mod ec2;

pub mod fleet;

pub mod sim;

// The only async, the only clock, the only sockets.

#[cfg(feature = "shell")]
pub mod shell;

#[cfg(feature = "shell")]
pub mod cli;
