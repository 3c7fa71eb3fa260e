//! Writes engine reports to the log. All lines use the same names of fields: cluster, pool, node,
//! claim.

use std::io::{self, IsTerminal};
use std::path::Path;

use tracing::Level;
use tracing::field::Value;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, registry, reload};

use crate::config::settings::{LogFormat, LogLevel};
use crate::engine::report::Report;
use crate::engine::report::description::{Description, FieldValue, Severity};
use crate::model::id::ClusterName;
use crate::telemetry::journal::Journal;
#[cfg(feature = "otlp")]
use crate::telemetry::otlp::exporter::Sender;
use crate::telemetry::{journal, otlp};

/// Initializes logging. Lines are written to stderr as text or JSON, or to the journal. Without a
/// journal, lines are written to stderr. `level` applies to Outrigger's own lines; other crates
/// log only warnings. `RUST_LOG` overrides `level`. Traces are sent to `endpoint`, if one is set.
/// Sending traces requires an entered Tokio runtime.
pub(crate) fn init(
    format: LogFormat,
    level: LogLevel,
    endpoint: Option<&str>,
) -> (LogFilter, Option<Traces>) {
    let fixed = EnvFilter::try_from_default_env().ok();
    let is_fixed = fixed.is_some();
    let (filter, handle) = reload::Layer::new(fixed.unwrap_or_else(|| level_filter(level)));
    let lines = fmt::layer().with_target(false).with_writer(io::stderr);
    let format = match format {
        LogFormat::Auto if journal::is_stderr_journal() => LogFormat::Journald,
        LogFormat::Auto => LogFormat::Text,
        other => other,
    };
    let lines = match format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Auto | LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Journald => match Journal::connect(Path::new(journal::SOCKET)) {
            Ok(journal) => journal.boxed(),
            // The reader of stderr adds timestamps.
            Err(_) => lines.without_time().with_ansi(false).boxed(),
        },
    };
    // Spans are for traces only, whatever `RUST_LOG` selects.
    let lines_only = filter_fn(|metadata| metadata.target() != otlp::TARGET);
    let lines = registry().with(lines.with_filter(filter.and(lines_only)));
    let level = LogFilter((!is_fixed).then_some(handle));
    #[cfg(feature = "otlp")]
    let traces = endpoint.map(Sender::for_endpoint);
    #[cfg(feature = "otlp")]
    let lines = lines.with(traces.as_ref().and_then(|trace| Some(trace.as_ref().ok()?.layer())));
    // This call fails only if a subscriber is already set, which happens only in tests.
    drop(lines.try_init());
    #[cfg(feature = "otlp")]
    let traces = traces.map(|trace| {
        let sender = trace.inspect_err(|error| tracing::warn!(%error, "cannot send traces"));
        Traces(sender.ok())
    });
    #[cfg(not(feature = "otlp"))]
    let traces = endpoint.map(|_| {
        tracing::warn!("cannot send traces: this build lacks the feature \"otlp\"");
        Traces
    });
    (level, traces)
}

/// Sends traces until dropped.
#[cfg(feature = "otlp")]
pub(crate) struct Traces(#[expect(dead_code, reason = "its Drop ends the export")] Option<Sender>);

/// Placeholder in builds without trace export.
#[cfg(not(feature = "otlp"))]
pub(crate) struct Traces;

/// The log filter. The level can change at runtime unless `RUST_LOG` is set.
pub(crate) struct LogFilter(Option<reload::Handle<EnvFilter, Registry>>);

impl LogFilter {
    /// Sets the log level.
    pub(crate) fn set_level(&self, level: LogLevel) {
        let set = self.0.as_ref().map(|handle| handle.reload(level_filter(level)));
        if let Some(Err(error)) = set {
            tracing::warn!(%error, "cannot change log level");
        }
    }
}

/// Logs Outrigger's own lines from this level on, and warnings of other crates. Lines of kube are
/// disabled because Outrigger logs failed API calls itself.
fn level_filter(level: LogLevel) -> EnvFilter {
    let ours = match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    EnvFilter::new(format!("warn,kube_client=off,kube_runtime=off,outrigger={ours}"))
}

/// Writes a line with these fields, and the fields that `$next` returns for their names. The macros
/// of tracing require a fixed list of names. The names are in an order in which all reports have
/// their fields. `pool` occurs twice: it is before the claim, but after the node of an adoption.
macro_rules! write_line {
    ($level:ident, $cluster:ident, $message:expr, $next:ident) => {
        write_line!(
            @ $level, $cluster, $message, $next, sweep at code of id command need pool pod claim
            mode node pool instance instance_type zone capacity_type resource promised found reason
            nodes pending placed claims unplaced usd_per_h usd_per_h_before usd_per_h_after
            offerings pod_count pods first kind text phase next after_ms took_s age_s failures
            since_s held_by until why missing reasons instances unready total what ignored
            disrupted blocked observed
        )
    };
    (@ $level:ident, $cluster:ident, $message:expr, $next:ident, $($name:ident)*) => {
        tracing::event!(
            Level::$level, %$cluster, $($name = $next(stringify!($name)),)* "{}", $message
        )
    };
}

/// Writes a report to the log.
pub(crate) fn log_report(cluster: &ClusterName, report: &Report, described: &Description<'_>) {
    let mut fields = described.fields.iter().peekable();
    let mut is_written = false;
    let mut next = |name: &str| {
        is_written = true;
        let (_, value) = fields.next_if(|(field, _)| *field == name)?;
        field_value(value)
    };
    let message = described.message;
    match described.severity {
        Some(Severity::Error) => write_line!(ERROR, cluster, message, next),
        Some(Severity::Warn) => write_line!(WARN, cluster, message, next),
        Some(Severity::Info) => write_line!(INFO, cluster, message, next),
        Some(Severity::Debug) => write_line!(DEBUG, cluster, message, next),
        None => {}
    }
    debug_assert!(
        !is_written || fields.next().is_none(),
        "the names of write_line lack a field of {message:?}, or have it in a different order"
    );
    if let Report::ClaimPlanned { claim, pods, .. } = report {
        for pod in pods {
            tracing::debug!(%cluster, %claim, %pod, "planned pod");
        }
    }
}

/// Returns the value as tracing records it.
fn field_value(value: &FieldValue) -> Option<Box<dyn Value + '_>> {
    Some(match value {
        FieldValue::Shown(text) => Box::new(tracing::field::display(text)),
        FieldValue::Text(text) => Box::new(text.as_str()),
        FieldValue::Count(number) => Box::new(*number),
        FieldValue::Signed(number) => Box::new(*number),
        FieldValue::Decimal(number) => Box::new(*number),
        FieldValue::Bool(value) => Box::new(*value),
        FieldValue::Absent => return None,
    })
}
