//! Log lines and metrics of reports.

// Structured fields in the systemd journal.
#[cfg(feature = "daemon")]
pub(crate) mod journal;
// Traces over OTLP.
#[cfg(feature = "daemon")]
pub(crate) mod otlp;
// Reports as log lines.
#[cfg(feature = "daemon")]
pub(crate) mod report_log;
// The names, labels and help texts of all metrics.
pub mod metric_definitions;
// Gauges of cluster state.
pub mod cluster_collector;
// Counters from reports.
#[cfg(feature = "daemon")]
pub(crate) mod report_metrics;
// Records of reports and commands.
#[cfg(feature = "daemon")]
pub(crate) mod record;
