//! What a configuration amounts to: clusters ready for their engines, and how the daemon reports.
//! It must not know how it was written.

use jiff::SignedDuration;

use crate::config::config_diff::ConfigValues;
use crate::config::diagnostic::Diagnostic;
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetLimits;

/// Where `/metrics`, `/livez` and `/readyz` are served when nothing is said: only this host asks
/// there, and 9464 is the port that OpenTelemetry gives to Prometheus exporters.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:9464";

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Fields for journald where the service manager has what is said go to the journal, else lines
    /// for people.
    #[default]
    Auto,
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
    /// Fields for journald.
    Journald,
}

/// What is left out of the log: everything below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// What failed.
    Error,
    /// What may be worth a look.
    Warn,
    /// What was decided.
    #[default]
    Info,
    /// Why it was decided.
    Debug,
    /// Everything.
    Trace,
}

/// Under whose names metrics are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricNames {
    /// Those of Karpenter, for the dashboards there are.
    Karpenter,
    /// Our own.
    Outrigger,
}

/// What the daemon says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telemetry {
    /// `host:port` for `/metrics`, `/livez` and `/readyz`; none means `DEFAULT_LISTEN`, where that
    /// is free.
    pub listen: Option<String>,
    /// The form of the log.
    pub log_format: LogFormat,
    /// What is left out of the log.
    pub log_level: LogLevel,
    /// Under whose names metrics are published.
    pub metric_names: Vec<MetricNames>,
    /// Whether each node has series of its own.
    pub per_node: bool,
    /// Where traces are sent.
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
    /// Region; none means that of the ARN, else the one that the daemon is in.
    pub region: Option<String>,
}

/// A parameter whose value the configuration depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polled {
    /// Which one.
    pub parameter: SsmOutput,
    /// How often it is looked at; none means only at a reload.
    pub every: Option<SignedDuration>,
}

/// A configuration, complete and valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The clusters, by name, each with all that is decided about it.
    pub clusters: Vec<Cluster>,
    /// Limits on all clusters together.
    pub fleet: FleetLimits,
    /// What the daemon says about itself.
    pub telemetry: Telemetry,
    /// Parameters that its values come from.
    pub polled: Vec<Polled>,
    /// Every argument that is set, as it is to be shown.
    pub written: ConfigValues,
    /// What can be used, but hardly means what its author meant.
    pub warnings: Vec<Diagnostic>,
}
