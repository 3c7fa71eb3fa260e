//! Runs the engines of a configuration against the real world: wires, drives, stops.
//! It must not know why anything is decided.

pub(crate) mod limiter;

pub(crate) mod fence;

pub(crate) mod clock_skew;

pub(crate) mod identity;

pub(crate) mod group;

pub(crate) mod telemetry;

pub mod kube;

pub(crate) mod provider;

pub(crate) mod wire;

pub(crate) mod simulated;

pub(crate) mod exec;

pub(crate) mod cloud_server;

#[cfg(feature = "aws")]
pub(crate) mod aws;

pub(crate) mod outputs;

#[cfg(test)]
mod conformance;

pub(crate) mod cron;

pub(crate) mod fleet;

pub(crate) mod timeline;

pub(crate) mod front;

pub(crate) mod driver;

pub(crate) mod rival;

pub(crate) mod tenure;

pub(crate) mod post;

pub(crate) mod drivers;

pub(crate) mod visit;

pub(crate) mod admin;

pub(crate) mod notify;

pub(crate) mod console;

pub(crate) mod supervisor;

pub(crate) mod doctor;
