//! Runs the engines of a configuration against live clusters and clouds.

// Lease holder identity of this process.
#[cfg(feature = "daemon")]
pub(crate) mod holder_identity;
// Sources of the configuration, and their changes.
#[cfg(feature = "daemon")]
pub(crate) mod config_source;
// Periodic jobs.
#[cfg(feature = "daemon")]
pub(crate) mod cron;
// The fleet as a task.
#[cfg(feature = "daemon")]
pub(crate) mod fleet_task;
// Recent activity of a cluster.
pub mod activity_log;
// Ready, degraded or unready: the health of a cluster in `status`.
pub mod cluster_health;
// Status of clusters, in the format of the control socket.
pub mod control_status;
// Inventory of a cluster, in the format of the control socket.
pub mod control_inventory;
// Outputs of all reports.
#[cfg(all(test, feature = "daemon"))]
mod report_outputs;
// Shared status of a cluster.
#[cfg(feature = "daemon")]
pub(crate) mod cluster_handle;
// Periodic jobs of each cluster.
#[cfg(feature = "daemon")]
pub(crate) mod cluster_jobs;
// The event loop of one engine.
#[cfg(feature = "daemon")]
pub(crate) mod engine_loop;
// Detects by Karpenter's Lease whether Karpenter is active.
#[cfg(feature = "daemon")]
pub(crate) mod autoscaler_watch;
// The task that acquires, renews and releases Leases.
#[cfg(feature = "daemon")]
pub(crate) mod leader_election;
// Runs an engine while this host leads.
#[cfg(feature = "daemon")]
pub(crate) mod cluster_runner;
// The set of configured clusters, and reloads.
#[cfg(feature = "daemon")]
pub(crate) mod clusters;
// Reads live clusters once, for CLI commands.
#[cfg(feature = "daemon")]
pub(crate) mod observe;
// /metrics, /livez and /readyz.
#[cfg(feature = "daemon")]
pub(crate) mod http_server;
// systemd notifications and watchdog.
#[cfg(feature = "daemon")]
pub(crate) mod systemd;
// Requested sweeps on the control socket.
#[cfg(feature = "daemon")]
pub(crate) mod control_sweep;
// The control socket for `status`, `top`, `reload`, `sweep`.
#[cfg(feature = "daemon")]
pub(crate) mod control;
// The daemon process: signals, telemetry, reloads.
#[cfg(feature = "daemon")]
pub(crate) mod daemon;
