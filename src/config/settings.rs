//! The result of a configuration: settings of clusters and of the daemon.

use jiff::SignedDuration;

use crate::config::config_diff::ConfigValues;
use crate::config::diagnostic::Diagnostic;
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetLimits;

/// The default address of `/metrics`, `/livez` and `/readyz`. Only this host can reach it.
/// OpenTelemetry uses port 9464 for Prometheus exporters.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:9464";

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Journald fields if the output is connected to the journal, otherwise text lines.
    #[default]
    Auto,
    /// Text lines.
    Text,
    /// One JSON object per line.
    Json,
    /// Journald fields.
    Journald,
}

/// The log level: less important lines are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Possible problems.
    Warn,
    /// Decisions.
    #[default]
    Info,
    /// Causes of decisions.
    Debug,
    /// Everything.
    Trace,
}

/// The names under which metrics are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricNames {
    /// Karpenter's names, for existing dashboards.
    Karpenter,
    /// Outrigger's names.
    Outrigger,
}

/// Log, metrics and traces of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telemetry {
    /// `host:port` for `/metrics`, `/livez` and `/readyz`. `None` means `DEFAULT_LISTEN`, if that
    /// port is free.
    pub listen: Option<String>,
    /// The format of the log.
    pub log_format: LogFormat,
    /// The log level.
    pub log_level: LogLevel,
    /// The names under which metrics are published.
    pub metric_names: Vec<MetricNames>,
    /// True if each node has its own series.
    pub per_node: bool,
    /// The endpoint for traces.
    pub otlp: Option<String>,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            listen: None,
            log_format: LogFormat::default(),
            log_level: LogLevel::default(),
            metric_names: vec![MetricNames::Karpenter, MetricNames::Outrigger],
            per_node: false,
            otlp: None,
        }
    }
}

/// A parameter of AWS Systems Manager that holds outputs of Terraform.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SsmOutput {
    /// Name or ARN.
    pub name: String,
    /// Region. `None` means the region of the ARN, or else the region of the daemon.
    pub region: Option<String>,
}

/// A parameter whose value the configuration depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polled {
    /// The parameter.
    pub parameter: SsmOutput,
    /// The refresh interval. `None` means that the parameter is read only at a reload.
    pub every: Option<SignedDuration>,
}

/// A configuration, complete and valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The clusters with all their settings, sorted by name.
    pub clusters: Vec<Cluster>,
    /// Limits of all clusters together.
    pub fleet: FleetLimits,
    /// Log, metrics and traces of the daemon.
    pub telemetry: Telemetry,
    /// Parameters that the configuration depends on.
    pub polled: Vec<Polled>,
    /// Every argument that is set, in a form that may be shown.
    pub written: ConfigValues,
    /// Warnings.
    pub warnings: Vec<Diagnostic>,
}
