//! Reports as lines of the log, with the same fields in every line: cluster, pool, node, claim.
//! It must not know what is counted.

use std::io::{self, IsTerminal};
use std::path::Path;

use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, registry, reload};

use crate::config::settings::{LogFormat, LogLevel};
use crate::engine::report::Report;
use crate::model::id::{ClaimId, ClusterName, NodeName, PodKey, PoolName};
use crate::model::instance::Price;
use crate::scheduling::static_pools::Shortfall;
use crate::scheduling::{PoolRejection, UnschedulablePod};
use crate::state::candidates::NodeHealth;
use crate::state::disruption_blockers::InvalidInput;
use crate::state::drain_blockers::listed;
use crate::telemetry::journal::Journal;
#[cfg(feature = "otlp")]
use crate::telemetry::otlp::exporter::Sender;
use crate::telemetry::{journal, otlp};

/// Pods named in one line; a node may be planned for a thousand.
const PODS: usize = 10;

/// Lines go to stderr, as text or as one JSON object each, or to the journal; to stderr as well
/// where there is none. `RUST_LOG` wins over `level`, which is
/// for our own lines; of other crates only warnings are told. Traces go to an endpoint, if any; a
/// runtime has to be entered for that.
pub(crate) fn init(
    format: LogFormat,
    level: LogLevel,
    endpoint: Option<&str>,
) -> (LogFilter, Option<Traces>) {
    let fixed = EnvFilter::try_from_default_env().ok();
    let is_fixed = fixed.is_some();
    let (filter, handle) = reload::Layer::new(fixed.unwrap_or_else(|| filter(level)));
    let lines = fmt::layer().with_target(false).with_writer(io::stderr);
    let journal = || Journal::connect(Path::new(journal::SOCKET)).ok();
    let format = match format {
        LogFormat::Auto if journal::takes_stderr() => LogFormat::Journald,
        LogFormat::Auto => LogFormat::Text,
        other => other,
    };
    let lines = match format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Auto | LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Journald => match journal() {
            Some(journal) => journal.boxed(),
            // Whoever takes the lines there has the time already.
            None => lines.without_time().with_ansi(false).boxed(),
        },
    };
    // Spans are for traces, whatever `RUST_LOG` says of our lines.
    let lines_only = filter_fn(|about| about.target() != otlp::TARGET);
    let lines = registry().with(lines.with_filter(filter.and(lines_only)));
    let level = LogFilter((!is_fixed).then_some(handle));
    #[cfg(feature = "otlp")]
    let traces = endpoint.map(Sender::to);
    #[cfg(feature = "otlp")]
    let lines = lines.with(
        traces
            .as_ref()
            .and_then(|own| Some(own.as_ref().ok()?.layer())),
    );
    // A second subscriber is refused, which only tests can see.
    drop(lines.try_init());
    #[cfg(feature = "otlp")]
    let traces = traces.map(|own| {
        let told = own.inspect_err(|error| tracing::warn!(%error, "no traces are sent"));
        Traces(told.ok())
    });
    #[cfg(not(feature = "otlp"))]
    let traces = endpoint.map(|_| {
        tracing::warn!("no traces are sent: this build has not the feature \"otlp\"");
        Traces
    });
    (level, traces)
}

/// Sends traces until it is dropped.
#[cfg(feature = "otlp")]
pub(crate) struct Traces(#[expect(dead_code, reason = "its end is what counts")] Option<Sender>);

/// Would send traces.
#[cfg(not(feature = "otlp"))]
pub(crate) struct Traces;

/// What is left out of the log, which can change while the daemon runs; not where `RUST_LOG` says.
pub(crate) struct LogFilter(Option<reload::Handle<EnvFilter, Registry>>);

impl LogFilter {
    /// From here on this is left out.
    pub(crate) fn set(&self, level: LogLevel) {
        let set = self.0.as_ref().map(|handle| handle.reload(filter(level)));
        if let Some(Err(error)) = set {
            tracing::warn!(%error, "the level of the log stays as it was");
        }
    }
}

/// Our own lines from this level on, and warnings of others. What kube says of each failed call is
/// said by us as well, where it matters.
fn filter(level: LogLevel) -> EnvFilter {
    let ours = match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    EnvFilter::new(format!(
        "warn,kube_client=off,kube_runtime=off,outrigger={ours}"
    ))
}

fn usd(price: Option<Price>) -> Option<f64> {
    price.map(Price::usd_per_h)
}

fn name(node: Option<&NodeName>) -> Option<&str> {
    node.map(NodeName::as_str)
}

fn names(nodes: &[NodeName]) -> String {
    let shown: Vec<&str> = nodes.iter().take(PODS).map(NodeName::as_str).collect();
    shown.join(" ")
}

fn some(pods: &[PodKey]) -> String {
    let shown: Vec<String> = pods.iter().take(PODS).map(ToString::to_string).collect();
    let rest = pods.len().saturating_sub(PODS);
    let more = if rest > 0 {
        format!(" and {rest} more")
    } else {
        String::new()
    };
    shown.join(" ") + &more
}

/// Writes the line of a report.
#[expect(clippy::too_many_lines, reason = "a table: one arm a kind")]
pub(crate) fn report(cluster: &ClusterName, managed: bool, report: &Report) {
    let mode = if managed { "manage" } else { "observe" };
    match report {
        Report::Ready => tracing::info!(%cluster, mode, "ready: decisions begin"),
        Report::Frozen(why) => tracing::warn!(%cluster, why, "frozen: nothing voluntary is done"),
        Report::Thawed => tracing::info!(%cluster, "thawed: the view is whole again"),
        Report::Mismatch(own) => tracing::error!(
            %cluster, code = own.code(), why = %own,
            "the API server and the instances are not of one cluster: nothing is done"
        ),
        Report::Matches => {
            tracing::info!(%cluster, "the API server and the instances are of one cluster");
        }
        Report::SameInstance { instance, nodes } => tracing::warn!(
            %cluster, %instance, nodes = names(nodes),
            "several nodes have the same providerID: none of them leaves on purpose"
        ),
        Report::EndsHeld(held) => tracing::warn!(
            %cluster, id = held.id, instances = held.claims.len(), total = held.total,
            "too many instances would end without a drain: accept it, and they do"
        ),
        Report::EndsReleased => {
            tracing::info!(%cluster, "no instance is kept from ending without a drain");
        }
        Report::Unregistered {
            pool,
            zone,
            failures,
            until,
        } => tracing::warn!(
            %cluster, %pool, %zone, failures, %until,
            "nodes do not register: launches wait, and one node is tried then; look at the image, \
             user data, subnet and security groups"
        ),
        Report::Registers { pool, zone, .. } => {
            tracing::info!(%cluster, %pool, %zone, "launches wait no longer for nodes to register");
        }
        Report::Planned {
            pending,
            placed,
            claims,
            unplaced,
            price,
        } => {
            let usd_per_h = price.usd_per_h();
            tracing::info!(%cluster, pending, placed, claims, unplaced, usd_per_h, "planned");
        }
        Report::Decided(waited) => tracing::debug!(%cluster, pods = waited.len(), "decided"),
        // By the thousand, and of no use one by one.
        Report::PodStarted(_) => {}
        Report::Unplaced(unplaced) => self::unplaced(cluster, unplaced),
        Report::Short(short) => self::short(cluster, short),
        Report::AllAnswered => tracing::info!(%cluster, "no pod is without an answer any more"),
        Report::Enough(need) => tracing::info!(%cluster, %need, "no more is missing"),
        Report::ClaimPlanned {
            claim,
            pool,
            offering,
            price,
            offerings,
            pods,
        } => {
            let usd_per_h = price.usd_per_h();
            let (count, named) = (pods.len(), some(pods));
            tracing::info!(
                %cluster, %pool, %claim, mode, instance_type = %offering.instance_type,
                zone = %offering.zone, capacity_type = offering.capacity_type.as_str(),
                usd_per_h, offerings, pod_count = count, pods = named, "claim planned"
            );
            for pod in pods {
                tracing::debug!(%cluster, %claim, %pod, "pod planned");
            }
        }
        Report::ClaimLaunched {
            claim,
            instance,
            offering,
            price,
        } => tracing::info!(
            %cluster, %claim, %instance, instance_type = %offering.instance_type,
            zone = %offering.zone, capacity_type = offering.capacity_type.as_str(),
            usd_per_h = usd(*price), "claim launched"
        ),
        Report::ClaimRefused { claim, refusals } => {
            let first = refusals.first().map(|it| it.offering.to_string());
            let kind = refusals.first().map(|it| it.kind.as_str());
            let offerings = refusals.len();
            tracing::warn!(%cluster, %claim, offerings, first, kind, "launch refused");
        }
        Report::ClaimRenewed { claim, next } => {
            let next = next.as_ref().map(ClaimId::as_str);
            tracing::debug!(%cluster, %claim, next, "claim goes on under a new id, or anew");
        }
        Report::ClaimDenied { claim, why } => {
            tracing::info!(%cluster, %claim, why, "claim denied by the fleet");
        }
        Report::BoundEarly {
            claim,
            node,
            pods,
            after,
        } => {
            let after_ms = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
            tracing::info!(%cluster, %claim, %node, pods, after_ms, "pods bound early");
        }
        Report::NotEarly { claim, why } => {
            tracing::warn!(%cluster, %claim, why, "pods are not bound early");
        }
        Report::ClaimPhase {
            claim, node, phase, ..
        } => {
            let (node, phase) = (name(node.as_ref()), phase.as_str());
            tracing::info!(%cluster, %claim, node, phase, "claim moved on");
        }
        Report::Retire {
            claim,
            node,
            reason,
            price,
            pods,
            ..
        } => tracing::info!(
            %cluster, %claim, mode, node = name(node.as_ref()), reason = reason.as_str(),
            usd_per_h = usd(*price), pods, "node asked to leave"
        ),
        Report::Eligible { reason, nodes } => {
            let reason = reason.as_str();
            tracing::debug!(%cluster, reason, nodes, "nodes may leave");
        }
        Report::Consolidates {
            nodes,
            claims,
            before,
            after,
            ..
        } => tracing::info!(
            %cluster, mode, nodes, claims,
            usd_per_h_before = before.usd_per_h(), usd_per_h_after = after.usd_per_h(),
            "nodes leave since their pods can be had for less"
        ),
        Report::Drifted { node, why } => tracing::info!(%cluster, %node, why, "node has drifted"),
        Report::Ailing(NodeHealth { unready, total }) => tracing::warn!(
            %cluster, unready, total, "too many nodes are not ready: none leaves on purpose"
        ),
        Report::Well(NodeHealth { unready, total }) => tracing::info!(
            %cluster, unready, total, "enough nodes are ready: others may leave on purpose again"
        ),
        Report::Held(hold) => {
            let (id, nodes, total) = (hold.id.as_str(), hold.nodes.len(), hold.total);
            tracing::warn!(
                %cluster, id, nodes, total,
                "too many nodes would leave by the configuration: accept it, and they do"
            );
        }
        Report::Unheld { id, nodes } => {
            tracing::info!(%cluster, id, nodes, "the configuration is accepted, or another");
        }
        Report::Interrupted {
            claim,
            node,
            instance,
            what,
            ignored,
        } => tracing::info!(
            %cluster, %claim, node = name(node.as_ref()), %instance, what = what.as_str(),
            ignored, "instance interrupted"
        ),
        Report::Kept { claim, reason, why } => {
            let reason = reason.as_str();
            tracing::info!(%cluster, %claim, reason, why, "node stays");
        }
        Report::Evicted { pod, reason } => {
            tracing::info!(%cluster, %pod, reason = reason.as_str(), "pod told to go");
        }
        Report::Ended {
            node,
            pool,
            took,
            age,
        } => {
            let (took_s, age_s) = (took.as_secs(), age.as_secs());
            tracing::info!(%cluster, %pool, %node, took_s, age_s, "node ended");
        }
        Report::Lacking {
            node,
            instance_type,
            resource,
            promised,
            found,
        } => tracing::warn!(
            %cluster, %node, %instance_type, resource, promised, found,
            "node has less than its type promises"
        ),
        Report::Unguarded { node } => {
            tracing::warn!(%cluster, %node, "node came without its taint");
        }
        Report::Paused { pool, until, why } => {
            let (pool, until) = (
                pool.as_ref().map(PoolName::as_str),
                until.map(|it| it.to_string()),
            );
            tracing::warn!(%cluster, pool, until, why, "paused: nothing voluntary is done");
        }
        Report::Resumed { pool } => {
            let pool = pool.as_ref().map(PoolName::as_str);
            tracing::info!(%cluster, pool, "a pause is over");
        }
        Report::Shut { pool, reason, why } => {
            let reason = reason.as_str();
            tracing::info!(%cluster, %pool, reason, why, "nodes that are due to leave stay");
        }
        Report::DrainHeld {
            claim,
            node,
            since,
            held_by,
            more,
            deadline,
        } => {
            let (since_s, held_by) = (since.as_secs(), listed(held_by, *more));
            let until = deadline.map(|at| at.to_string()).unwrap_or_default();
            tracing::warn!(%cluster, %claim, %node, since_s, held_by, until, "drain held");
        }
        Report::DrainForced {
            claim,
            node,
            held_by,
            more,
        } => {
            let held_by = listed(held_by, *more);
            tracing::warn!(%cluster, %claim, %node, held_by, "node ends all the same");
        }
        Report::Lingers {
            claim,
            instance,
            since,
        } => {
            let since_s = since.as_secs();
            tracing::warn!(%cluster, %claim, %instance, since_s, "instance does not end");
        }
        Report::EvictRefused { pod, text } => {
            tracing::info!(%cluster, %pod, text, "eviction refused for now");
        }
        Report::Orphan { node } => {
            tracing::info!(%cluster, %node, "node without an instance: its object goes");
        }
        Report::LeftClosed { nodes } => {
            tracing::warn!(
                %cluster, nodes,
                "the cluster is only observed now, and nodes that were leaving stay closed: \
                 `outrigger release` opens them"
            );
        }
        Report::Misread(InvalidInput { of, why }) => {
            tracing::warn!(%cluster, of, why, "not understood");
        }
        Report::Failed {
            command,
            kind,
            text,
        } => {
            tracing::warn!(%cluster, command, kind = kind.as_str(), text, "command failed");
        }
        Report::Adopted { node, pool } => {
            tracing::info!(%cluster, %node, %pool, "node of Karpenter's taken over");
        }
        Report::NotAdopted { pool, nodes } => {
            tracing::warn!(
                %cluster, %pool, nodes,
                "nodes of Karpenter's stay with nobody: no pool is called like theirs"
            );
        }
        Report::Stranger { instance, why } => {
            tracing::warn!(%cluster, %instance, why, "instance left alone");
        }
    }
}

fn unplaced(cluster: &ClusterName, unplaced: &UnschedulablePod) {
    let pod = &unplaced.pod;
    tracing::warn!(%cluster, %pod, reasons = words(&unplaced.reasons), "pod unplaced");
}

fn short(cluster: &ClusterName, short: &Shortfall) {
    let (need, missing) = (&short.need, short.missing);
    tracing::warn!(%cluster, %need, missing, reasons = words(&short.reasons), "too few can be had");
}

fn words(reasons: &[PoolRejection]) -> String {
    let words = reasons.iter().map(|why| match &why.pool {
        Some(pool) => format!("pool {pool}: {}", why.text()),
        None => why.text(),
    });
    words.collect::<Vec<String>>().join("; ")
}
