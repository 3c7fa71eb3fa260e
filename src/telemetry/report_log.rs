//! Writes engine reports to the log. All lines use the same names of fields: cluster, pool, node,
//! claim.

use std::io::{self, IsTerminal};
use std::path::Path;

use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, registry, reload};

use crate::config::settings::{LogFormat, LogLevel};
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, ClusterName, NodeName, PodKey, PoolName};
use crate::model::instance::Price;
use crate::model::pool::Reason;
use crate::scheduling::static_pools::Shortfall;
use crate::scheduling::{PoolRejection, UnschedulablePod};
use crate::state::candidates::NodeHealth;
use crate::state::disruption_blockers::InvalidInput;
use crate::state::drain_blockers::format_blockers;
use crate::telemetry::journal::Journal;
#[cfg(feature = "otlp")]
use crate::telemetry::otlp::exporter::Sender;
use crate::telemetry::{journal, otlp};

/// Maximum number of pods listed in one line. A node may be planned for a thousand pods.
const PODS: usize = 10;

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
        LogFormat::Auto if journal::takes_stderr() => LogFormat::Journald,
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
    // Fails if a subscriber is already set, which happens only in tests.
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

/// The log filter. It can change at runtime unless `RUST_LOG` is set.
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

fn usd_per_hour(price: Option<Price>) -> Option<f64> {
    price.map(Price::usd_per_h)
}

fn node_name(node: Option<&NodeName>) -> Option<&str> {
    node.map(NodeName::as_str)
}

fn node_names(nodes: &[NodeName]) -> String {
    let listed_names: Vec<&str> = nodes.iter().take(PODS).map(NodeName::as_str).collect();
    listed_names.join(" ")
}

fn pod_names(pods: &[PodKey]) -> String {
    let listed_names: Vec<String> = pods.iter().take(PODS).map(ToString::to_string).collect();
    let omitted = pods.len().saturating_sub(PODS);
    let more = if omitted > 0 { format!(" and {omitted} more") } else { String::new() };
    listed_names.join(" ") + &more
}

/// Writes a report to the log.
#[expect(clippy::too_many_lines, reason = "a table with one arm per kind")]
pub(crate) fn log_report(cluster: &ClusterName, managed: bool, report: &Report) {
    let mode = if managed { "manage" } else { "observe" };
    match report {
        Report::Ready => tracing::info!(%cluster, mode, "cluster ready, starting decisions"),
        Report::Frozen(why) => {
            tracing::warn!(%cluster, why, "cluster state out of sync, suspending decisions");
        }
        Report::Thawed => tracing::info!(%cluster, "cluster state in sync, resuming decisions"),
        Report::Mismatch(mismatch) => tracing::error!(
            %cluster, code = mismatch.code(), why = %mismatch,
            "API server and instances belong to different clusters, suspending all changes"
        ),
        Report::Matches => {
            tracing::info!(%cluster, "API server and instances belong to the same cluster");
        }
        Report::SameInstance { instance, nodes } => tracing::warn!(
            %cluster, %instance, nodes = node_names(nodes),
            "blocked voluntary disruption of nodes with the same providerID"
        ),
        Report::EndsHeld(held) => tracing::warn!(
            %cluster, id = held.id, instances = held.claims.len(), total = held.total,
            "too many instances would be terminated without a drain, waiting for approval"
        ),
        Report::EndsReleased => {
            tracing::info!(%cluster, "no termination without a drain needs approval");
        }
        Report::Unregistered { pool, zone, failures, until } => tracing::warn!(
            %cluster, %pool, %zone, failures, %until,
            "nodes fail to register, holding launches until a test launch; check the image, \
             user data, subnet and security groups"
        ),
        Report::Registers { pool, zone, .. } => {
            tracing::info!(%cluster, %pool, %zone, "resumed launches held for failed registration");
        }
        Report::Planned { pending, placed, claims, unplaced, price } => {
            let usd_per_h = price.usd_per_h();
            tracing::info!(%cluster, pending, placed, claims, unplaced, usd_per_h, "computed plan");
        }
        Report::Decided(waited) => {
            tracing::debug!(%cluster, pods = waited.len(), "planned pods for the first time");
        }
        // Too many for the log. The metrics count them.
        Report::PodStarted(_) => {}
        Report::Unplaced(unplaced) => self::log_unschedulable_pod(cluster, unplaced),
        Report::Short(short) => self::log_shortfall(cluster, short),
        Report::AllAnswered => tracing::info!(%cluster, "no unschedulable pods remain"),
        Report::Enough(need) => {
            tracing::info!(%cluster, %need, "required capacity no longer missing")
        }
        Report::ClaimPlanned { claim, pool, offering, price, offerings, pods } => {
            let usd_per_h = price.usd_per_h();
            let (count, named) = (pods.len(), pod_names(pods));
            let action = if managed { "planned claim" } else { "would launch claim" };
            tracing::info!(
                %cluster, %pool, %claim, mode, instance_type = %offering.instance_type,
                zone = %offering.zone, capacity_type = offering.capacity_type.as_str(),
                usd_per_h, offerings, pod_count = count, pods = named, "{action}"
            );
            for pod in pods {
                tracing::debug!(%cluster, %claim, %pod, "planned pod");
            }
        }
        Report::ClaimLaunched { claim, instance, offering, price } => tracing::info!(
            %cluster, %claim, %instance, instance_type = %offering.instance_type,
            zone = %offering.zone, capacity_type = offering.capacity_type.as_str(),
            usd_per_h = usd_per_hour(*price), "launched claim"
        ),
        Report::ClaimRefused { claim, refusals } => {
            let first = refusals.first().map(|it| it.offering.to_string());
            let kind = refusals.first().map(|it| it.kind.as_str());
            let offerings = refusals.len();
            tracing::warn!(%cluster, %claim, offerings, first, kind, "launch refused");
        }
        Report::ClaimRenewed { claim, next } => {
            let next = next.as_ref().map(ClaimId::as_str);
            tracing::debug!(%cluster, %claim, next, "replaced claim after failed launch");
        }
        Report::ClaimDenied { claim, why } => {
            tracing::info!(%cluster, %claim, why, "denied claim, limit reached");
        }
        Report::BoundEarly { claim, node, pods, after } => {
            let after_ms = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
            tracing::info!(%cluster, %claim, %node, pods, after_ms, "bound pods early");
        }
        Report::NotEarly { claim, why } => {
            tracing::warn!(%cluster, %claim, why, "cannot bind pods early");
        }
        Report::ClaimPhase { claim, node, phase, .. } => {
            let (node, action) = (node_name(node.as_ref()), phase_message(*phase));
            tracing::info!(%cluster, %claim, node, phase = phase.as_str(), "{action}");
        }
        Report::Retire { claim, node, reason, price, pods, .. } => {
            let action = match reason {
                _ if !managed => "would disrupt node",
                Reason::TimedOut => "terminating claim, timed out",
                _ => "disrupting node",
            };
            tracing::info!(
                %cluster, %claim, mode, node = node_name(node.as_ref()), reason = reason.as_str(),
                usd_per_h = usd_per_hour(*price), pods, "{action}"
            );
        }
        Report::Eligible { reason, nodes } => {
            let reason = reason.as_str();
            tracing::debug!(%cluster, reason, nodes, "counted nodes eligible for disruption");
        }
        Report::Consolidates { nodes, claims, before, after, .. } => {
            let action = if managed { "consolidating nodes" } else { "would consolidate nodes" };
            tracing::info!(
                %cluster, mode, nodes, claims, usd_per_h_before = before.usd_per_h(),
                usd_per_h_after = after.usd_per_h(), "{action}"
            );
        }
        Report::Drifted { node, why } => tracing::info!(%cluster, %node, why, "detected drift"),
        Report::Ailing(NodeHealth { unready, total }) => tracing::warn!(
            %cluster, unready, total,
            "too many nodes are not ready, suspending voluntary disruption"
        ),
        Report::Well(NodeHealth { unready, total }) => tracing::info!(
            %cluster, unready, total,
            "enough nodes are ready, resuming voluntary disruption"
        ),
        Report::Held(hold) => {
            let (id, nodes, total) = (hold.id.as_str(), hold.nodes.len(), hold.total);
            tracing::warn!(
                %cluster, id, nodes, total,
                "configuration would disrupt too many nodes, waiting for approval"
            );
        }
        Report::Unheld { id, nodes } => {
            tracing::info!(
                %cluster, id, nodes, "configuration approved or superseded, releasing held nodes"
            );
        }
        Report::Interrupted { claim, node, instance, what, ignored } => tracing::info!(
            %cluster, %claim, node = node_name(node.as_ref()), %instance, what = what.as_str(),
            ignored, "received interruption notice"
        ),
        Report::Kept { claim, reason, why } => {
            let reason = reason.as_str();
            tracing::info!(%cluster, %claim, reason, why, "cancelled disruption");
        }
        Report::Evicted { pod, reason } => {
            tracing::info!(%cluster, %pod, reason = reason.as_str(), "evicted pod");
        }
        Report::Ended { node, pool, took, age } => {
            let (took_s, age_s) = (took.as_secs(), age.as_secs());
            tracing::info!(%cluster, %pool, %node, took_s, age_s, "terminated node");
        }
        Report::Lacking { node, instance_type, resource, promised, found } => tracing::warn!(
            %cluster, %node, %instance_type, resource, promised, found,
            "node has less capacity than its instance type"
        ),
        Report::Unguarded { node } => {
            tracing::warn!(
                %cluster, %node, "node registered without taint karpenter.sh/unregistered"
            );
        }
        Report::Paused { pool, until, why } => {
            let (pool, until) =
                (pool.as_ref().map(PoolName::as_str), until.map(|it| it.to_string()));
            tracing::warn!(%cluster, pool, until, why, "paused voluntary disruption");
        }
        Report::Resumed { pool } => {
            let pool = pool.as_ref().map(PoolName::as_str);
            tracing::info!(%cluster, pool, "resumed voluntary disruption");
        }
        Report::Shut { pool, reason, why } => {
            let reason = reason.as_str();
            tracing::info!(%cluster, %pool, reason, why, "blocked disruption");
        }
        Report::DrainHeld { claim, node, since, held_by, more, deadline } => {
            let (since_s, held_by) = (since.as_secs(), format_blockers(held_by, *more));
            let until = deadline.map(|at| at.to_string()).unwrap_or_default();
            tracing::warn!(%cluster, %claim, %node, since_s, held_by, until, "drain blocked");
        }
        Report::DrainForced { claim, node, held_by, more } => {
            let held_by = format_blockers(held_by, *more);
            tracing::warn!(%cluster, %claim, %node, held_by, "terminating node, drain timed out");
        }
        Report::Lingers { claim, instance, since } => {
            let since_s = since.as_secs();
            tracing::warn!(%cluster, %claim, %instance, since_s, "instance does not terminate");
        }
        Report::EvictRefused { pod, text } => {
            tracing::info!(%cluster, %pod, text, "eviction refused, retrying");
        }
        Report::Orphan { node } => {
            tracing::info!(%cluster, %node, "garbage collecting node without instance");
        }
        Report::LeftClosed { nodes } => {
            tracing::warn!(
                %cluster, nodes,
                "switched to observe mode, disrupted nodes remain tainted; \
                 run `outrigger release` to untaint them"
            );
        }
        Report::Misread(InvalidInput { of, why }) => {
            tracing::warn!(%cluster, of, why, "ignoring invalid value");
        }
        Report::Failed { command, kind, text } => {
            tracing::warn!(%cluster, command, kind = kind.as_str(), text, "command failed");
        }
        Report::Adopted { node, pool } => {
            tracing::info!(%cluster, %node, %pool, "adopted Karpenter node");
        }
        Report::NotAdopted { pool, nodes } => {
            tracing::warn!(
                %cluster, %pool, nodes,
                "cannot adopt Karpenter nodes, no pool with a matching name"
            );
        }
        Report::Stranger { instance, why } => {
            tracing::warn!(%cluster, %instance, why, "ignoring instance");
        }
    }
}

/// The verb for a claim that enters a phase.
fn phase_message(phase: ClaimPhase) -> &'static str {
    match phase {
        ClaimPhase::Planned => "planning claim",
        ClaimPhase::Launching => "launching claim",
        ClaimPhase::Launched => "found instance of claim",
        ClaimPhase::Registered => "registered claim",
        ClaimPhase::Initialized => "initialized claim",
        ClaimPhase::Draining => "draining claim",
        ClaimPhase::Terminating => "terminating claim",
        ClaimPhase::Gone => "terminated claim",
    }
}

fn log_unschedulable_pod(cluster: &ClusterName, unplaced: &UnschedulablePod) {
    let pod = &unplaced.pod;
    let reasons = rejection_texts(&unplaced.reasons);
    tracing::warn!(%cluster, %pod, reasons, "cannot schedule pod");
}

fn log_shortfall(cluster: &ClusterName, short: &Shortfall) {
    let (need, missing) = (&short.need, short.missing);
    let reasons = rejection_texts(&short.reasons);
    tracing::warn!(%cluster, %need, missing, reasons, "cannot provide required capacity");
}

fn rejection_texts(reasons: &[PoolRejection]) -> String {
    let words: Vec<String> = reasons.iter().map(rejection_text).collect();
    words.join("; ")
}

/// Formats a rejection without its code.
pub(crate) fn rejection_text(why: &PoolRejection) -> String {
    match &why.pool {
        Some(pool) => format!("pool {pool}: {}", why.rejection_text()),
        None => why.rejection_text(),
    }
}
