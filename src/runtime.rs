//! Runs the engines of a configuration against live clusters and clouds.

// Lease holder identity of this process.
pub(crate) mod holder_identity;
// Sources of the configuration, and their changes.
pub(crate) mod config_source;
// Periodic jobs.
pub(crate) mod cron;
// The fleet as a task.
pub(crate) mod fleet_task;
// Recent activity of a cluster.
pub(crate) mod activity_log;
// Outputs of all reports.
#[cfg(test)]
mod report_outputs;
// Shared status of a cluster.
pub(crate) mod cluster_handle;
// The event loop of one engine.
pub(crate) mod engine_loop;
// Whether Karpenter is active, by its Lease.
pub(crate) mod autoscaler_watch;
// The task that acquires, renews and releases Leases.
pub(crate) mod leader_election;
// Runs an engine while this host leads.
pub(crate) mod cluster_runner;
// The set of configured clusters, and reloads.
pub(crate) mod clusters;
// One-time read of live clusters for verbs.
pub(crate) mod observe;
// /metrics, /livez and /readyz.
pub(crate) mod http_server;
// systemd notifications and watchdog.
pub(crate) mod systemd;
// The control socket for `status`, `top`, `reload`.
pub(crate) mod control;
// The daemon process: signals, telemetry, reloads.
pub(crate) mod daemon;
