//! Outrigger decides which nodes a Kubernetes cluster needs, launches them, and terminates them
//! when they are no longer needed. It runs outside the cluster.
//!
//! The modules are declared lowest first: a module uses only modules above it (tests/it/tidy.rs).
//! No module before `host` may read the clock, files or the network. From `host` on, only
//! submodules that require a Cargo feature may. Only submodules with the feature `daemon` have
//! async code and sockets.

/// Data types: pods, nodes, pools, instance types, claims, and the settings of a cluster.
pub mod model;
/// Rules for strings that leave the program: control characters and YAML scalars.
pub mod text;
/// The Lease of a cluster: leader election, annotations, detection of another active autoscaler.
pub mod coordination;
/// The contract between engine and providers: launch requests, results, refusals, failures,
/// interruptions.
pub mod provider;
/// Instance types with capacity, labels, offerings and prices.
pub mod catalog;
/// User data with which an instance joins its cluster.
pub mod bootstrap;
/// Converts HCL files to `model`. Each diagnostic has its file and line.
pub mod config;
/// Converts Karpenter objects and Cluster Autoscaler flags to HCL, and HCL to Karpenter objects.
pub mod migrate;
/// Cluster state of one engine, built from events, and the snapshot for decisions.
pub mod state;
/// EC2 data without requests: launch templates, CreateFleet requests, errors, messages, IAM policy.
pub mod ec2;
/// Converts Kubernetes objects in JSON to types of `model`.
pub mod kubernetes_convert;
/// Schedules pods to existing nodes, and plans new nodes for all other pods.
pub mod scheduling;
/// Selects nodes that may be disrupted, and returns a verdict for every other node.
pub mod disruption;
/// Plans: launches and disruptions as data, with audit, explanation and output.
pub mod plan;
/// Reconciles one cluster: converts events to commands, without a clock or the network.
pub mod engine;
/// State that clusters share: limits, reservations, unavailable offerings.
pub mod fleet;
/// A simulated cluster, cloud and scheduler for the engine, with faults and invariants.
pub mod sim;
/// Clock and files of the host, and safe output of strings.
pub mod host;
/// Code for every outgoing request: the check that this host still holds the Lease, rate limits,
/// and the clock skew of the response.
#[cfg(feature = "daemon")]
pub(crate) mod outbound;
/// Logs, metrics and traces.
pub mod telemetry;
/// The client side of a cluster's API: watches, commands, Lease, Events, credentials.
pub mod kubernetes;
/// Providers of instances: EC2, a program (`exec`), the simulated cloud.
pub mod providers;
/// The daemon: clusters, leader election, engine loops, control socket.
pub mod runtime;
/// Checks of `outrigger doctor`.
pub mod doctor;
/// The commands of the CLI, one file each.
#[cfg(feature = "cli")]
pub mod cli;
