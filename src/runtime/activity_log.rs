//! Recent activity of a cluster, one line per report, for `outrigger top`.

use std::borrow::Cow;
use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::engine::report::Report;
use crate::host::text::bounded_line;
use crate::model::id::{ClaimId, NodeName, PoolName};
use crate::model::instance::{OfferingKey, Price};
use crate::model::pool::Reason;
use crate::scheduling::PoolRejection;
use crate::scheduling::rejection::bounded_text;
use crate::state::drain_blockers::format_blockers;
use crate::telemetry::report_log::rejection_text;

/// Lines kept per cluster: about an hour of a busy cluster, and some tens of kilobytes.
const LINES: usize = 200;

/// A line of the activity log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActivityEntry {
    pub(crate) at: Timestamp,
    /// True if the line is a warning.
    pub(crate) warns: bool,
    /// The event, in two or three words.
    pub(crate) what: Cow<'static, str>,
    /// The node, claim, pod or pool. Empty for the whole cluster.
    pub(crate) of: String,
    /// Details.
    pub(crate) text: String,
    /// How many consecutive events the line stands for. It shows the last one.
    pub(crate) times: u32,
}

/// The lines of one cluster, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ActivityLog(VecDeque<ActivityEntry>);

impl ActivityLog {
    /// Adds a line for a report that has one. Consecutive reports about pods share a line.
    pub(crate) fn add_report(&mut self, report: &Report, managed: bool, now: Timestamp) {
        let Some(line) = entry_for(report, managed, now) else {
            return;
        };
        let last = self.0.back_mut();
        if let Some(last) = last.filter(|entry| is_of_pods(report) && entry.what == line.what) {
            let times = last.times.saturating_add(1);
            *last = ActivityEntry { times, ..line };
            return;
        }
        if self.0.len() >= LINES {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    /// Returns all lines, newest first.
    pub(crate) fn newest_first(&self) -> Vec<ActivityEntry> {
        self.0.iter().rev().cloned().collect()
    }
}

fn is_of_pods(report: &Report) -> bool {
    matches!(report, Report::Evicted { .. } | Report::EvictRefused { .. } | Report::Unplaced(_))
}

/// Warning, event, object and details.
type ActivityText = (bool, &'static str, String, String);

fn entry_for(report: &Report, managed: bool, now: Timestamp) -> Option<ActivityEntry> {
    let (warns, event, object, text) = plan_text(report, managed)
        .or_else(|| disruption_text(report, managed))
        .or_else(|| drain_text(report))
        .or_else(|| node_text(report))
        .or_else(|| cluster_text(report))
        .or_else(|| user_action_text(report))?;
    Some(ActivityEntry {
        at: now,
        warns,
        what: Cow::Borrowed(event),
        of: bounded_line(&object),
        text: bounded_line(&text),
        times: 1,
    })
}

fn info(event: &'static str, object: String, text: impl Into<String>) -> ActivityText {
    (false, event, object, text.into())
}

fn warning(event: &'static str, object: String, text: impl Into<String>) -> ActivityText {
    (true, event, object, text.into())
}

/// Planned claims and launches.
fn plan_text(report: &Report, managed: bool) -> Option<ActivityText> {
    Some(match report {
        Report::ClaimPlanned { claim, pool, offering, price, pods, .. } => {
            let text = format!(
                "pool {pool}: {} at ${:.4}/h for {} pods",
                offering_text(offering),
                price.usd_per_h(),
                pods.len()
            );
            let event = either_mode(managed, "planned claim", "would launch claim");
            info(event, bounded_text(claim), text)
        }
        Report::ClaimLaunched { claim, instance, offering, price } => {
            let text = format!("{instance}: {}{}", offering_text(offering), price_suffix(*price));
            info("launched claim", bounded_text(claim), text)
        }
        Report::ClaimRefused { claim, refusals } => {
            let first = refusals.first();
            let first =
                first.map(|refusal| format!("{} {}", refusal.kind.as_str(), refusal.offering));
            let (count, first) = (refusals.len(), first.unwrap_or_default());
            let text = format!("{count} offerings, first {first}");
            warning("launch refused", bounded_text(claim), text)
        }
        Report::ClaimDenied { claim, why } => warning("denied claim", bounded_text(claim), why),
        Report::Unplaced(pod) => {
            let text = first_reason(&pod.reasons);
            warning("cannot schedule pod", bounded_text(&pod.pod), text)
        }
        Report::Short(short) => {
            let text = format!("{} missing: {}", short.missing, first_reason(&short.reasons));
            warning("capacity missing", bounded_text(&short.need), text)
        }
        _ => return None,
    })
}

/// Disruptions, and what blocks them.
fn disruption_text(report: &Report, managed: bool) -> Option<ActivityText> {
    Some(match report {
        Report::Retire { claim, pool, node, reason, price, pods } => {
            let (reason_kind, reason) = (reason, reason.as_str());
            let text =
                format!("{reason}, pool {pool}{}, {pods} pods to reschedule", price_suffix(*price));
            let event = match reason_kind {
                _ if !managed => "would disrupt node",
                Reason::TimedOut => "terminating claim",
                _ => "disrupting node",
            };
            info(event, node_or_claim(node.as_ref(), claim), text)
        }
        Report::Consolidates { nodes, claims, before, after, .. } => {
            let (before, after) = (before.usd_per_h(), after.usd_per_h());
            let text = format!("{nodes} nodes to {claims} nodes, ${before:.4}/h to ${after:.4}/h");
            let event = either_mode(managed, "consolidating nodes", "would consolidate nodes");
            info(event, String::new(), text)
        }
        Report::Kept { claim, reason, why } => {
            let text = format!("{}: {why}", reason.as_str());
            info("cancelled disruption", bounded_text(claim), text)
        }
        Report::Shut { pool, reason, why } => {
            let text = format!("{}: {why}", reason.as_str());
            info("blocked disruption", pool_text(pool), text)
        }
        Report::Interrupted { claim, node, what, ignored, .. } => {
            let then = if *ignored { ": ignored" } else { "" };
            let text = format!("{}{then}", what.as_str());
            warning("interruption notice", node_or_claim(node.as_ref(), claim), text)
        }
        _ => return None,
    })
}

/// Drains and terminations.
fn drain_text(report: &Report) -> Option<ActivityText> {
    Some(match report {
        Report::DrainHeld { node, since, held_by, more, .. } => {
            let text =
                format!("for {}: {}", format_duration(*since), format_blockers(held_by, *more));
            warning("drain blocked", bounded_text(node), text)
        }
        Report::DrainForced { node, held_by, more, .. } => {
            warning("drain timed out", bounded_text(node), format_blockers(held_by, *more))
        }
        Report::Lingers { claim, instance, since } => {
            let text = format!("{instance}: termination requested {} ago", format_duration(*since));
            warning("slow termination", bounded_text(claim), text)
        }
        Report::Evicted { pod, reason } => {
            let text = format!("node disrupted: {}", reason.as_str());
            info("evicted pod", bounded_text(pod), text)
        }
        Report::EvictRefused { pod, text } => info("eviction refused", bounded_text(pod), text),
        Report::Ended { node, pool, took, .. } => {
            let text = format!("{}, after {}", pool_text(pool), format_duration(*took));
            info("terminated node", bounded_text(node), text)
        }
        _ => return None,
    })
}

/// Changes of existing nodes.
fn node_text(report: &Report) -> Option<ActivityText> {
    Some(match report {
        Report::ClaimPhase { claim, node, phase, .. } => {
            let object = node_or_claim(node.as_ref(), claim);
            info("claim phase", object, phase.as_str())
        }
        Report::BoundEarly { node, pods, .. } => {
            let text = format!("{pods} pods");
            info("bound pods early", bounded_text(node), text)
        }
        Report::Adopted { node, pool } => info("adopted node", bounded_text(node), pool_text(pool)),
        Report::Drifted { node, why } => info("detected drift", bounded_text(node), *why),
        Report::Lacking { node, instance_type, resource, promised, found } => {
            let text = format!("{resource} {found}, instance type {instance_type} has {promised}");
            warning("less capacity", bounded_text(node), text)
        }
        Report::Unguarded { node } => {
            warning("missing taint", bounded_text(node), "karpenter.sh/unregistered")
        }
        Report::Orphan { node } => {
            info("orphaned node", bounded_text(node), "garbage collecting node without instance")
        }
        _ => return None,
    })
}

/// State of the whole cluster. Starts of pods and passes without a decision have no line.
fn cluster_text(report: &Report) -> Option<ActivityText> {
    Some(match report {
        Report::Ready => info("ready", String::new(), "starting decisions"),
        Report::Frozen(why) => warning("out of sync", String::new(), why),
        Report::Mismatch(mismatch) => {
            warning("wrong cluster", String::new(), bounded_text(mismatch))
        }
        Report::Matches => info(
            "right cluster",
            String::new(),
            "API server and instances belong to the same cluster",
        ),
        Report::Thawed => info("in sync", String::new(), "resuming decisions"),
        Report::Planned { pending, placed, claims, unplaced, .. } => {
            let text = format!(
                "{pending} pending pods: {placed} on existing nodes, {claims} new nodes, \
                 {unplaced} unschedulable"
            );
            info("computed plan", String::new(), text)
        }
        Report::Ailing(health) => {
            let text = format!(
                "{} of {} nodes are not ready, suspending voluntary disruption",
                health.unready, health.total
            );
            warning("nodes not ready", String::new(), text)
        }
        Report::Well(health) => {
            let text = format!("{} of {} nodes are not ready", health.unready, health.total);
            info("nodes ready", String::new(), text)
        }
        Report::NotAdopted { pool, nodes } => {
            let text = format!("{nodes} Karpenter nodes, no pool with this name");
            warning("cannot adopt", pool_text(pool), text)
        }
        Report::NotEarly { claim, why } => warning("cannot bind early", bounded_text(claim), why),
        _ => return None,
    })
}

/// Actions of users, and what needs their attention.
fn user_action_text(report: &Report) -> Option<ActivityText> {
    Some(match report {
        Report::Held(approval) => {
            let (nodes, total, id) = (approval.nodes.len(), approval.total, &approval.id);
            let text = format!(
                "{nodes} of {total} nodes would be disrupted: outrigger reload --accept {id}"
            );
            warning("approval needed", String::new(), text)
        }
        Report::EndsHeld(approval) => {
            let (instances, total, id) = (approval.claims.len(), approval.total, &approval.id);
            let text = format!(
                "{instances} of {total} instances would be terminated without a drain: outrigger \
                 reload --accept {id}"
            );
            warning("approval needed", String::new(), text)
        }
        Report::Unregistered { pool, zone, until, .. } => {
            let text = format!("nodes fail to register in {zone}; next test launch at {until}");
            warning("launches held", pool_text(pool), text)
        }
        Report::Registers { pool, zone, .. } => {
            let text = format!("launches in {zone} no longer wait for nodes to register");
            info("launches resumed", pool_text(pool), text)
        }
        Report::EndsReleased => {
            info("released", String::new(), "no termination without a drain needs approval")
        }
        Report::Unheld { nodes, .. } => {
            info("released", String::new(), format!("{nodes} nodes may be disrupted"))
        }
        Report::Paused { pool, until, why } => {
            let until = until.map_or("until resumed".to_owned(), |at| format!("until {at}"));
            warning("paused", pool_or_empty(pool.as_ref()), format!("{until}: {why}"))
        }
        Report::Resumed { pool } => info("resumed", pool_or_empty(pool.as_ref()), String::new()),
        Report::LeftClosed { nodes } => warning(
            "left tainted",
            String::new(),
            format!("{nodes} disrupted nodes; untaint them with outrigger release"),
        ),
        Report::Misread(input) => warning("invalid value", input.of.clone(), &input.why),
        Report::Failed { command, kind, text } => {
            let text = format!("{}: {text}", kind.as_str());
            warning("command failed", (*command).to_owned(), text)
        }
        Report::Stranger { instance, why } => {
            warning("ignored instance", bounded_text(instance), why)
        }
        _ => return None,
    })
}

/// The event in manage mode, or in observe mode.
fn either_mode(managed: bool, does: &'static str, would: &'static str) -> &'static str {
    if managed { does } else { would }
}

fn node_or_claim(node: Option<&NodeName>, claim: &ClaimId) -> String {
    node.map_or_else(|| bounded_text(claim), bounded_text)
}

fn pool_text(pool: &PoolName) -> String {
    format!("pool {}", bounded_text(pool))
}

fn pool_or_empty(pool: Option<&PoolName>) -> String {
    pool.map_or_else(String::new, pool_text)
}

fn offering_text(offering: &OfferingKey) -> String {
    let kind = offering.capacity_type.as_str();
    format!("{} {} {kind}", offering.instance_type, offering.zone)
}

fn price_suffix(price: Option<Price>) -> String {
    price.map_or_else(String::new, |price| format!(" at ${:.4}/h", price.usd_per_h()))
}

fn format_duration(duration: SignedDuration) -> String {
    format!("{:#}", SignedDuration::from_secs(duration.as_secs()))
}

/// The first reason, and the number of further reasons.
fn first_reason(reasons: &[PoolRejection]) -> String {
    let more = reasons.len().saturating_sub(1);
    let text = reasons.first().map(rejection_text).unwrap_or_default();
    match more {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::{ActivityLog, LINES};
    use crate::engine::report::Report;
    use crate::model::id::PodKey;
    use crate::model::pool::Reason;

    #[test]
    fn the_newest_come_first_and_the_oldest_are_forgotten() {
        let mut timeline = ActivityLog::default();
        for nodes in 0..LINES + 5 {
            let report = Report::LeftClosed { nodes };
            timeline.add_report(&report, true, Timestamp::UNIX_EPOCH);
        }
        let lines = timeline.newest_first();
        assert_eq!(lines.len(), LINES);
        assert!(lines[0].text.starts_with("204 disrupted nodes"), "{:?}", lines[0]);
    }

    #[test]
    fn what_is_said_of_pod_after_pod_is_one_line() {
        let mut timeline = ActivityLog::default();
        let told = |timeline: &mut ActivityLog, name: &str| {
            let report = Report::Evicted { pod: PodKey::new("a", name), reason: Reason::Drifted };
            timeline.add_report(&report, true, Timestamp::UNIX_EPOCH);
        };
        told(&mut timeline, "one\u{1b}[2J");
        told(&mut timeline, "two\u{1b}[2J");
        timeline.add_report(&Report::Thawed, true, Timestamp::UNIX_EPOCH);
        told(&mut timeline, "three");
        let lines = timeline.newest_first();
        let told: Vec<_> = lines.iter().map(|it| (&it.of[..], it.times)).collect();
        assert_eq!(told, [("a/three", 1), ("", 1), ("a/two [2J", 2)]);
    }
}
