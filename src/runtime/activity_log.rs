//! The latest of what was decided, done and seen in a cluster, line by line, for people who watch.
//! It must not know who watches, nor keep more than a screen or two of it.

use std::borrow::Cow;
use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::engine::report::Report;
use crate::host::text::bounded;
use crate::model::id::{ClaimId, NodeName, PoolName};
use crate::model::instance::{OfferingKey, Price};
use crate::scheduling::PoolRejection;
use crate::scheduling::rejection::part;
use crate::state::drain_blockers::listed;

/// So many lines are kept of each cluster: an hour of one that is busy, and some tens of kilobytes.
const LINES: usize = 200;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActivityEntry {
    pub(crate) at: Timestamp,
    /// Whether somebody should look.
    pub(crate) warns: bool,
    /// What it was, in two words or three.
    pub(crate) what: Cow<'static, str>,
    /// Of which node, claim, pod or pool; empty where it is of the cluster.
    pub(crate) of: String,
    /// More of it.
    pub(crate) text: String,
    /// How often it was in a row, the last of which this is.
    pub(crate) times: u32,
}

/// The lines of one cluster, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct ActivityLog(VecDeque<ActivityEntry>);

impl ActivityLog {
    /// Takes a report in, if it is worth a line. What is said of pod after pod is one line.
    pub(crate) fn note(&mut self, report: &Report, managed: bool, now: Timestamp) {
        let Some(line) = line(report, managed, now) else {
            return;
        };
        let last = self.0.back_mut();
        if let Some(last) = last.filter(|own| is_of_pods(report) && own.what == line.what) {
            let times = last.times.saturating_add(1);
            *last = ActivityEntry { times, ..line };
            return;
        }
        if self.0.len() >= LINES {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    /// All of them, the newest first.
    pub(crate) fn lines(&self) -> Vec<ActivityEntry> {
        self.0.iter().rev().cloned().collect()
    }
}

fn is_of_pods(report: &Report) -> bool {
    matches!(
        report,
        Report::Evicted { .. } | Report::EvictRefused { .. } | Report::Unplaced(_)
    )
}

/// Whether somebody should look, what it was, of what, and more of it.
type ActivityText = (bool, &'static str, String, String);

fn line(report: &Report, managed: bool, now: Timestamp) -> Option<ActivityEntry> {
    let (warns, what, of, text) = of_plans(report, managed)
        .or_else(|| of_leaving(report, managed))
        .or_else(|| of_drains(report))
        .or_else(|| of_nodes(report))
        .or_else(|| of_cluster(report))
        .or_else(|| of_people(report))?;
    Some(ActivityEntry {
        at: now,
        warns,
        what: Cow::Borrowed(what),
        of: bounded(&of),
        text: bounded(&text),
        times: 1,
    })
}

/// Which nodes are made, and what comes of launches.
fn of_plans(report: &Report, managed: bool) -> Option<ActivityText> {
    let only = only(managed);
    Some(match report {
        Report::ClaimPlanned {
            claim,
            pool,
            offering,
            price,
            pods,
            ..
        } => {
            let text = format!(
                "pool {pool}: {} at ${:.4}/h for {} pods{only}",
                of_offering(offering),
                price.usd_per_h(),
                pods.len()
            );
            (false, "claim planned", part(claim), text)
        }
        Report::ClaimLaunched {
            claim,
            instance,
            offering,
            price,
        } => {
            let text = format!("{instance}: {}{}", of_offering(offering), at(*price));
            (false, "claim launched", part(claim), text)
        }
        Report::ClaimRefused { claim, refusals } => {
            let first = refusals.first();
            let first = first.map(|own| format!("{} {}", own.kind.as_str(), own.offering));
            let (count, first) = (refusals.len(), first.unwrap_or_default());
            let text = format!("{count} offerings, the first {first}");
            (true, "launch refused", part(claim), text)
        }
        Report::ClaimDenied { claim, why } => (true, "claim denied", part(claim), why.clone()),
        Report::Unplaced(own) => {
            let text = first(&own.reasons);
            (true, "pod unplaced", part(&own.pod), text)
        }
        Report::Short(own) => {
            let text = format!("{} are missing: {}", own.missing, first(&own.reasons));
            (true, "too few", part(&own.need), text)
        }
        _ => return None,
    })
}

/// Which nodes leave or stay, and why.
fn of_leaving(report: &Report, managed: bool) -> Option<ActivityText> {
    let only = only(managed);
    Some(match report {
        Report::Retire {
            claim,
            pool,
            node,
            reason,
            price,
            pods,
        } => {
            let reason = reason.as_str();
            let text = format!(
                "{reason}, pool {pool}{}: {pods} pods move{only}",
                at(*price)
            );
            (false, "node leaves", either(node.as_ref(), claim), text)
        }
        Report::Consolidates {
            nodes,
            claims,
            before,
            after,
            ..
        } => {
            let (before, after) = (before.usd_per_h(), after.usd_per_h());
            let text = format!(
                "{nodes} nodes leave and {claims} come: ${before:.4}/h becomes ${after:.4}/h{only}"
            );
            (false, "consolidation", String::new(), text)
        }
        Report::Kept { claim, reason, why } => {
            let text = format!("{}: {why}", reason.as_str());
            (false, "node stays", part(claim), text)
        }
        Report::Shut { pool, reason, why } => {
            let text = format!("{}: {why}", reason.as_str());
            (false, "nodes stay", of_pool(pool), text)
        }
        Report::Interrupted {
            claim,
            node,
            what,
            ignored,
            ..
        } => {
            let then = if *ignored { ": nothing is done" } else { "" };
            let text = format!("{}{then}", what.as_str());
            (true, "interrupted", either(node.as_ref(), claim), text)
        }
        _ => return None,
    })
}

/// How nodes go that are leaving.
fn of_drains(report: &Report) -> Option<ActivityText> {
    Some(match report {
        Report::DrainHeld {
            node,
            since,
            held_by,
            more,
            ..
        } => {
            let text = format!("for {}: {}", span(*since), listed(held_by, *more));
            (true, "drain held", part(node), text)
        }
        Report::DrainForced {
            node,
            held_by,
            more,
            ..
        } => (true, "drain forced", part(node), listed(held_by, *more)),
        Report::Lingers {
            claim,
            instance,
            since,
        } => {
            let text = format!("{instance} does not end for {}", span(*since));
            (true, "instance lingers", part(claim), text)
        }
        Report::Evicted { pod, reason } => {
            let text = format!("its node leaves: {}", reason.as_str());
            (false, "pod told to go", part(pod), text)
        }
        Report::EvictRefused { pod, text } => (false, "eviction refused", part(pod), text.clone()),
        Report::Ended {
            node, pool, took, ..
        } => {
            let text = format!("{}, after {}", of_pool(pool), span(*took));
            (false, "node ended", part(node), text)
        }
        _ => return None,
    })
}

/// What happens to nodes that are there.
fn of_nodes(report: &Report) -> Option<ActivityText> {
    Some(match report {
        Report::ClaimPhase {
            claim, node, phase, ..
        } => {
            let of = either(node.as_ref(), claim);
            (false, "node moved on", of, phase.as_str().to_owned())
        }
        Report::BoundEarly { node, pods, .. } => {
            let text = format!("{pods} pods");
            (false, "bound early", part(node), text)
        }
        Report::Adopted { node, pool } => (false, "node taken over", part(node), of_pool(pool)),
        Report::Drifted { node, why } => (false, "node drifted", part(node), (*why).to_owned()),
        Report::Lacking {
            node,
            instance_type,
            resource,
            promised,
            found,
        } => {
            let text =
                format!("{found} of the {promised} {resource} that a {instance_type} promises");
            (true, "node lacks", part(node), text)
        }
        Report::Unguarded { node } => (
            true,
            "node unguarded",
            part(node),
            "without its taint".to_owned(),
        ),
        Report::Orphan { node } => (
            false,
            "node orphaned",
            part(node),
            "it has no instance".to_owned(),
        ),
        _ => return None,
    })
}

/// What is said of the cluster. What is said of each pod as it starts, or of rounds in which
/// nothing is decided, is no line.
fn of_cluster(report: &Report) -> Option<ActivityText> {
    let none = String::new;
    Some(match report {
        Report::Ready => (false, "ready", none(), "decisions begin".to_owned()),
        Report::Frozen(why) => (true, "frozen", none(), why.clone()),
        Report::Mismatch(own) => (true, "not this cluster", none(), part(own)),
        Report::Matches => (
            false,
            "this cluster",
            none(),
            "the API server and the instances are of one cluster".to_owned(),
        ),
        Report::Thawed => (
            false,
            "thawed",
            none(),
            "the view is whole again".to_owned(),
        ),
        Report::Planned {
            pending,
            placed,
            claims,
            unplaced,
            ..
        } => {
            let text = format!(
                "{pending} pods wait: {placed} fit on nodes, {claims} nodes are made, {unplaced} \
                 find no place"
            );
            (false, "planned", none(), text)
        }
        Report::Ailing(own) => {
            let text = format!(
                "{} of {} nodes are not ready: none leaves",
                own.unready, own.total
            );
            (true, "not well", none(), text)
        }
        Report::Well(own) => {
            let text = format!("{} of {} nodes are not ready", own.unready, own.total);
            (false, "well again", none(), text)
        }
        Report::NotAdopted { pool, nodes } => {
            let text = format!("{nodes} nodes of Karpenter's, and no pool is called so");
            (true, "not taken over", of_pool(pool), text)
        }
        Report::NotEarly { claim, why } => (true, "not bound early", part(claim), why.clone()),
        _ => return None,
    })
}

/// What people have said or have to see to.
fn of_people(report: &Report) -> Option<ActivityText> {
    let none = String::new;
    Some(match report {
        Report::Held(own) => {
            let (nodes, total, id) = (own.nodes.len(), own.total, &own.id);
            let text =
                format!("{nodes} of {total} nodes would leave: outrigger reload --accept {id}");
            (true, "held back", none(), text)
        }
        Report::EndsHeld(own) => {
            let (instances, total, id) = (own.claims.len(), own.total, &own.id);
            let text = format!(
                "{instances} of {total} instances would end without a drain: outrigger reload \
                 --accept {id}"
            );
            (true, "held back", none(), text)
        }
        Report::Unregistered {
            pool, zone, until, ..
        } => {
            let text = format!("nodes do not register in {zone}; one is tried at {until}");
            (true, "launches wait", of_pool(pool), text)
        }
        Report::Registers { pool, zone, .. } => {
            let text = format!("launches in {zone} wait no longer for nodes to register");
            (false, "launches go on", of_pool(pool), text)
        }
        Report::EndsReleased => (
            false,
            "held no more",
            none(),
            "no instance is kept from ending without a drain".to_owned(),
        ),
        Report::Unheld { nodes, .. } => (
            false,
            "held no more",
            none(),
            format!("{nodes} nodes may leave"),
        ),
        Report::Paused { pool, until, why } => {
            let until = until.map_or("until it is resumed".to_owned(), |at| format!("until {at}"));
            (
                true,
                "paused",
                of_pools(pool.as_ref()),
                format!("{until}: {why}"),
            )
        }
        Report::Resumed { pool } => (false, "resumed", of_pools(pool.as_ref()), none()),
        Report::LeftClosed { nodes } => (
            true,
            "left closed",
            none(),
            format!("{nodes} nodes that were leaving"),
        ),
        Report::Misread(own) => (true, "not understood", own.of.clone(), own.why.clone()),
        Report::Failed {
            command,
            kind,
            text,
        } => {
            let text = format!("{}: {text}", kind.as_str());
            (true, "failed", (*command).to_owned(), text)
        }
        Report::Stranger { instance, why } => (true, "left alone", part(instance), why.clone()),
        _ => return None,
    })
}

/// What is added where nothing is done about a decision.
fn only(managed: bool) -> &'static str {
    if managed { "" } else { ", only observed" }
}

fn either(node: Option<&NodeName>, claim: &ClaimId) -> String {
    node.map_or_else(|| part(claim), part)
}

fn of_pool(pool: &PoolName) -> String {
    format!("pool {}", part(pool))
}

fn of_pools(pool: Option<&PoolName>) -> String {
    pool.map_or_else(String::new, of_pool)
}

fn of_offering(own: &OfferingKey) -> String {
    let kind = own.capacity_type.as_str();
    format!("{} {} {kind}", own.instance_type, own.zone)
}

fn at(price: Option<Price>) -> String {
    price.map_or_else(String::new, |own| format!(" at ${:.4}/h", own.usd_per_h()))
}

fn span(own: SignedDuration) -> String {
    format!("{:#}", SignedDuration::from_secs(own.as_secs()))
}

/// The first reason, with how many more there are.
fn first(reasons: &[PoolRejection]) -> String {
    let more = reasons.len().saturating_sub(1);
    let own = reasons.first().map(|why| match &why.pool {
        Some(pool) => format!("pool {pool}: {}", why.text()),
        None => why.text(),
    });
    let own = own.unwrap_or_default();
    match more {
        0 => own,
        more => format!("{own}; and {more} more"),
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
            timeline.note(&report, true, Timestamp::UNIX_EPOCH);
        }
        let lines = timeline.lines();
        assert_eq!(lines.len(), LINES);
        assert!(lines[0].text.starts_with("204 nodes"), "{:?}", lines[0]);
    }

    #[test]
    fn what_is_said_of_pod_after_pod_is_one_line() {
        let mut timeline = ActivityLog::default();
        let told = |timeline: &mut ActivityLog, name: &str| {
            let report = Report::Evicted {
                pod: PodKey::new("a", name),
                reason: Reason::Drifted,
            };
            timeline.note(&report, true, Timestamp::UNIX_EPOCH);
        };
        told(&mut timeline, "one\u{1b}[2J");
        told(&mut timeline, "two\u{1b}[2J");
        timeline.note(&Report::Thawed, true, Timestamp::UNIX_EPOCH);
        told(&mut timeline, "three");
        let lines = timeline.lines();
        let told: Vec<_> = lines.iter().map(|own| (&own.of[..], own.times)).collect();
        assert_eq!(told, [("a/three", 1), ("", 1), ("a/two [2J", 2)]);
    }
}
