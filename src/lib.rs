//! Outrigger decides which nodes a Kubernetes cluster needs, launches them, and terminates them
//! when they are no longer needed. It runs outside the cluster.
//!
//! The modules are declared lowest first: a module names only those above it (tests/it/tidy.rs).
//! None may read the clock, files or the network before `host`; only modules with the feature
//! `daemon` have async code and sockets.

/// Vocabulary: pods, nodes, pools, instance types, claims, and the settings of a cluster.
pub mod model;
/// Text that leaves the program: control characters and YAML scalars.
pub mod text;
/// The Lease of a cluster: who leads, annotations, whether another autoscaler is active.
pub mod coordination;
/// Instance types with capacity, labels and prices, as regions sell and node classes use them.
pub mod catalog;
/// User data that makes an instance a node of its cluster.
pub mod bootstrap;
/// HCL files to model, each diagnostic with its file and line.
pub mod config;
/// Karpenter objects and Cluster Autoscaler flags as HCL, and HCL as Karpenter objects.
pub mod migrate;
/// Cluster state of one engine, built from events, and the snapshot that decisions are made from.
pub mod state;
/// Kubernetes objects in JSON as types of `model`.
pub mod kubernetes_convert;
/// Which pods are scheduled to which nodes, and which nodes are needed for the rest.
pub mod scheduling;
/// Which nodes may be disrupted, and a verdict for each that may not.
pub mod disruption;
/// Decisions as data: launches and disruptions, audited, explained and rendered.
pub mod plan;
/// Reconciles one cluster: events in, commands out, without clock or network.
pub mod engine;
/// Rules of EC2 as values: launch templates, CreateFleet requests, errors, messages, IAM policy.
pub mod ec2;
/// What clusters share: limits, reservations, unavailable offerings.
pub mod fleet;
/// A simulated cluster, cloud and scheduler for the engine, with faults and invariants.
pub mod sim;
/// Clock and files of the host, and text fit to be shown.
#[cfg(feature = "cli")]
pub mod host;
/// What every request that leaves the process passes: the fence, rate limits, the clock skew of its
/// answer.
#[cfg(feature = "daemon")]
pub(crate) mod outbound;
/// Logs, metrics and traces.
#[cfg(feature = "daemon")]
pub(crate) mod telemetry;
/// The client side of a cluster's API: watches, commands, Lease, Events, credentials.
#[cfg(feature = "daemon")]
pub mod kubernetes;
/// Providers of instances: EC2, a program (`exec`), the simulated cloud.
#[cfg(feature = "daemon")]
pub(crate) mod providers;
/// The daemon: clusters, leader election, engine loops, control socket.
#[cfg(feature = "daemon")]
pub mod runtime;
/// Checks of `outrigger doctor`.
#[cfg(feature = "daemon")]
pub(crate) mod doctor;
/// One file for each verb.
#[cfg(feature = "cli")]
pub mod cli;
