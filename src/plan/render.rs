//! Formats a plan as text in the style of Terraform, and as one JSON object.

use std::collections::BTreeMap;
use std::fmt::Write;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::model::buffer::buffer_of;
use crate::model::id::PodKey;
use crate::model::instance::{OfferingKey, Price};
use crate::model::pool::Reason;
use crate::model::sweep::SweepKind;
use crate::plan::names::instance_type_names;
use crate::plan::render_rejections::{rejection_line, rejections_json};
use crate::plan::{Plan, PlannedTermination};
use crate::scheduling::NewNodeClaim;
use crate::scheduling::static_pools::StaticDemand;
use crate::state::candidates::NodeHealth;
use crate::state::snapshot::NodeRef;

/// Version of the JSON object. It changes when a field is removed or changes its meaning.
pub const FORMAT_VERSION: &str = "1.0";

/// Reasons that disrupt nodes with running pods. Retained nodes are shown for these reasons.
const SHOWN: [Reason; 4] = [Reason::Drifted, Reason::Expired, Reason::Unhealthy, Reason::Surplus];

/// Maximum number of pods and nodes listed by name. Further ones are only counted.
const PODS_SHOWN: usize = 5;

/// A plan with the data needed to format it.
#[derive(Clone, Debug)]
pub struct RenderedPlan<'a> {
    /// The cluster's name.
    pub cluster: &'a str,
    /// The plan.
    pub plan: &'a Plan,
    /// The current cost of the cluster's nodes, in US dollars per hour.
    pub before: f64,
    /// How long planning took, in seconds of wall time.
    pub solve_seconds: f64,
    /// The objects missing from the cluster state.
    pub missing: Option<&'a str>,
    /// The plan without disruption budgets, if it was computed.
    pub unbudgeted: Option<&'a Plan>,
    /// When the next sweep of each kind with a schedule runs. Without the daemon, it is not known
    /// which nodes the last sweep found, so the plan disrupts all due nodes.
    pub sweeps: BTreeMap<SweepKind, Timestamp>,
}

impl RenderedPlan<'_> {
    /// Returns the cost of the cluster's nodes after the plan, in US dollars per hour.
    pub fn cost_after(&self) -> f64 {
        self.cost_after_plan(self.plan)
    }

    fn cost_after_plan(&self, plan: &Plan) -> f64 {
        let launched = plan.launches.iter().filter_map(|claim| claim.offerings.first());
        let launched: f64 = launched.map(|(_, price)| price.usd_per_h()).sum();
        let retired = plan.retire.iter().filter(|retire| !retire.is_replaced());
        let retired = retired.filter_map(|retire| retire.price);
        self.before + launched - retired.map(Price::usd_per_h).sum::<f64>()
    }

    /// Formats the plan as one JSON object.
    pub fn json(&self) -> Value {
        let mut value = self.json_without_sweeps();
        if !self.sweeps.is_empty() {
            let sweeps = self.sweeps.iter().map(|(kind, at)| {
                let nodes = self.nodes_of_sweep(*kind);
                json!({ "sweep": kind.as_str(), "next": at.to_string(), "nodes": nodes })
            });
            value["sweeps"] = sweeps.collect();
        }
        value
    }

    /// Counts the nodes of the plan that wait for sweeps of a kind.
    fn nodes_of_sweep(&self, kind: SweepKind) -> usize {
        let retire = self.plan.retire.iter();
        retire.filter(|node| SweepKind::of_reason(node.reason) == Some(kind)).count()
    }

    /// Writes when the next sweeps run and what they would do.
    fn write_sweeps(&self, out: &mut String) {
        let sweeps = self.sweeps.iter().filter(|(kind, _)| kind.delays_disruption());
        for (kind, at) in sweeps {
            let nodes = self.nodes_of_sweep(*kind);
            let kind = kind.as_str();
            let _ = writeln!(
                out,
                "  @ {kind} sweep at {at}: would disrupt {nodes} of these nodes, as of now"
            );
        }
    }

    fn json_without_sweeps(&self) -> Value {
        json!({
            "format_version": FORMAT_VERSION,
            "cluster": self.cluster,
            "solve_seconds": self.solve_seconds,
            "launches": self.launches_json(),
            "placed_on_existing": self.placed_json(),
            "unplaced": self.unplaced_json(),
            "short": self.short_json(),
            "retire": self.retire_json(),
            "kept": self.kept_json(),
            "missing": self.missing,
            "usd_per_h_before": round_usd(self.before),
            "usd_per_h_after": round_usd(self.cost_after()),
            "usd_per_h_unbudgeted":
                self.unbudgeted.map(|plan| round_usd(self.cost_after_plan(plan))),
        })
    }

    fn launches_json(&self) -> Vec<Value> {
        self.plan
            .launches
            .iter()
            .enumerate()
            .filter_map(|(index, claim)| {
                let (first, price) = claim.offerings.first()?;
                let mut launch = json!({
                    "claim": format!("claim-{}", index + 1),
                    "pool": claim.pool.as_str(),
                    "instance_type": first.instance_type.as_str(),
                    "instance_types": instance_type_names(claim),
                    "zone": first.zone.as_str(),
                    "capacity_type": first.capacity_type.as_str(),
                    "usd_per_h": round_usd(price.usd_per_h()),
                    "pods": pod_names(&claim.pods),
                    "buffers": pods_by_buffer(&claim.pods),
                });
                if let Some(id) = claim.reservation() {
                    launch["reservation"] = json!(id.as_str());
                }
                Some(launch)
            })
            .collect()
    }

    fn placed_json(&self) -> Vec<Value> {
        self.plan
            .placed
            .iter()
            .map(|(host, pods)| match host {
                NodeRef::Node(node) => json!({ "node": node.as_str(), "pods": pod_names(pods) }),
                NodeRef::Claim(claim) => {
                    json!({ "claim": claim.as_str(), "pods": pod_names(pods) })
                }
            })
            .collect()
    }

    fn unplaced_json(&self) -> Vec<Value> {
        let unplaced = self.plan.unplaced.iter().map(|unplaced| {
            let reasons = rejections_json(&unplaced.reasons);
            json!({ "pod": unplaced.pod.to_string(), "reasons": reasons })
        });
        unplaced.collect()
    }

    fn short_json(&self) -> Vec<Value> {
        self.plan
            .short
            .iter()
            .map(|shortfall| {
                let (kind, name) = match &shortfall.need {
                    StaticDemand::Nodes(pool) => ("pool", pool.as_str()),
                    StaticDemand::Room(buffer) => ("buffer", buffer.as_str()),
                };
                let reasons = rejections_json(&shortfall.reasons);
                json!({ kind: name, "missing": shortfall.missing, "reasons": reasons })
            })
            .collect()
    }

    fn retire_json(&self) -> Vec<Value> {
        self.plan
            .retire
            .iter()
            .map(|termination| {
                let mut value = json!({
                    "node": termination.node.as_str(),
                    "reason": termination.reason.as_str(),
                    "pool": termination.pool.as_str(),
                    "pods": termination.pods,
                    "usd_per_h": termination.price.map(|price| round_usd(price.usd_per_h())),
                });
                if let Some(cause) = termination.cause {
                    value["cause"] = json!(cause);
                }
                value
            })
            .collect()
    }

    /// Returns the retained nodes to show: nodes that are drifted, expired, unhealthy or surplus,
    /// and empty nodes that the health of the cluster retains.
    fn retained_to_show(&self) -> impl Iterator<Item = &RetainedNode> {
        let kept = self.plan.kept.iter();
        kept.filter(|node| {
            let ails = matches!(node.verdict, Verdict::Health(_));
            SHOWN.contains(&node.reason) || ails && node.reason != Reason::Underutilized
        })
    }

    fn kept_json(&self) -> Vec<Value> {
        self.retained_to_show()
            .map(|node| {
                json!({
                    "node": node.node.as_str(),
                    "reason": node.reason.as_str(),
                    "verdict": node.verdict.code(),
                    "text": node.verdict.to_string(),
                })
            })
            .collect()
    }

    /// Writes the retained nodes, grouped by reason and verdict.
    fn write_kept(&self, out: &mut String) {
        if let Some(NodeHealth { unready, total }) = self.plan.ailing {
            let why = format!("{unready} of {total} nodes are not ready");
            let _ = writeln!(out, "  ! voluntary disruption is suspended: {why}");
        }
        let mut groups: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
        for node in self.retained_to_show() {
            let group = (node.reason.as_str(), node.verdict.to_string());
            groups.entry(group).or_default().push(node.node.as_str());
        }
        for ((reason, why), nodes) in groups {
            let listed = shortened_list(nodes.into_iter());
            let _ = writeln!(out, "  ~ keep {listed} ({reason}): {why}");
        }
    }

    /// Formats the plan as text: `+` marks launches, `-` disrupted nodes, `~` retained nodes and
    /// `!` problems such as unschedulable pods.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "Cluster {}:\n", self.cluster);
        for claim in &self.plan.launches {
            let Some((first, price)) = claim.offerings.first() else {
                continue;
            };
            let others = match claim.offerings.len() - 1 {
                0 => String::new(),
                1 => " (or 1 other offering)".to_owned(),
                more => format!(" (or {more} other offerings)"),
            };
            let _ = writeln!(out, "  + launch {first}{others} in pool {}", claim.pool);
            let (price, requests) = (price.usd_per_h(), &claim.requests);
            let _ = writeln!(out, "      ${price:.4}/h for {requests}");
            let _ = writeln!(out, "      {}", purpose_text(claim));
        }
        for (host, pods) in &self.plan.placed {
            let _ = writeln!(out, "    {host} takes {}", pods_text(pods));
        }
        for termination in &self.plan.retire {
            let _ = writeln!(out, "  - disrupt {}", termination_text(termination));
        }
        for claim in &self.plan.cancel {
            let surplus = Reason::Surplus.as_str();
            let _ = writeln!(out, "  - terminate claim {claim}: {surplus}");
        }
        self.write_sweeps(&mut out);
        self.write_kept(&mut out);
        self.write_unplaced(&mut out);
        for shortfall in &self.plan.short {
            let _ = writeln!(out, "  ! {}: {} missing", shortfall.need, shortfall.missing);
            for rejection in shortfall.reasons.iter() {
                let _ = writeln!(out, "      {}", rejection_line(rejection));
            }
        }
        for finding in &self.plan.findings {
            let _ = writeln!(out, "  ! audit: {finding}");
        }
        let quiet = self.plan.unplaced.is_empty() && self.plan.short.is_empty();
        if self.plan.is_empty() && quiet && self.plan.placed.is_empty() {
            let _ = writeln!(out, "  Nothing to do.");
        }
        let (before, after) = (self.before, self.cost_after());

        let _ = writeln!(
            out,
            "\nPlan: {} to launch, {} to disrupt, {} unschedulable. \
             Cost: ${before:.2}/h → ${after:.2}/h{}.",
            self.plan.launches.len(),
            self.plan.retire.len(),
            self.plan.unplaced.len(),
            change_text(before, after),
        );
        let least = self.unbudgeted.map(|plan| self.cost_after_plan(plan));
        if let Some(least) = least.filter(|least| round_usd(*least) < round_usd(after)) {
            let _ = writeln!(
                out,
                "As disruption budgets allow, later passes reduce the cost to ${least:.2}/h{}.",
                change_text(before, least),
            );
        }
        out
    }

    /// Writes the unschedulable pods, grouped by reasons.
    fn write_unplaced(&self, out: &mut String) {
        let mut groups: BTreeMap<Vec<String>, Vec<PodKey>> = BTreeMap::new();
        for unplaced in &self.plan.unplaced {
            let reasons = unplaced.reasons.iter().map(rejection_line).collect();
            let pods = groups.entry(reasons).or_default();
            pods.push(unplaced.pod.clone());
        }
        for (reasons, pods) in groups {
            let _ = writeln!(out, "  ! cannot schedule {}", pods_text(&pods));
            for reason in reasons {
                let _ = writeln!(out, "      {reason}");
            }
        }
    }
}

/// Formats the change of a cost in per cent. Empty if the cost was zero before.
fn change_text(before: f64, after: f64) -> String {
    match before > 0.0 {
        true => format!(" ({:+.0}%)", (after - before) / before * 100.0),
        false => String::new(),
    }
}

/// Formats a disrupted node: the reason, the pods to reschedule and the price.
fn termination_text(termination: &PlannedTermination) -> String {
    let mut text = format!("{}: {}", termination.node, termination.reason.as_str());
    if let Some(cause) = termination.cause {
        let _ = write!(text, " ({cause})");
    }
    match termination.pods {
        0 => {}
        1 => text.push_str(", 1 pod to reschedule"),
        pods => {
            let _ = write!(text, ", {pods} pods to reschedule");
        }
    }
    if let Some(price) = termination.price {
        let _ = write!(text, ", ${:.4}/h", price.usd_per_h());
    }
    text
}

/// Returns the names of the pods, without the virtual pods of buffers.
fn pod_names(pods: &[PodKey]) -> Vec<String> {
    let real = pods.iter().filter(|pod| buffer_of(pod).is_none());
    real.map(ToString::to_string).collect()
}

/// Counts the virtual pods by buffer.
fn pods_by_buffer(pods: &[PodKey]) -> BTreeMap<&str, usize> {
    let mut buffers = BTreeMap::new();
    for buffer in pods.iter().filter_map(buffer_of) {
        *buffers.entry(buffer).or_insert(0) += 1;
    }
    buffers
}

/// Describes the purpose of a new node.
fn purpose_text(claim: &NewNodeClaim) -> String {
    let buffers = pods_by_buffer(&claim.pods);
    if buffers.is_empty() {
        return match claim.pods.is_empty() {
            true => "for the replicas of its pool".to_owned(),
            false => pods_text(&claim.pods),
        };
    }
    let rooms: Vec<String> = buffers
        .into_iter()
        .map(|(buffer, count)| match count {
            1 => format!("capacity for 1 pod of buffer {buffer}"),
            _ => format!("capacity for {count} pods of buffer {buffer}"),
        })
        .collect();
    rooms.join(", ")
}

fn pods_text(pods: &[PodKey]) -> String {
    let plural = if pods.len() == 1 { "pod" } else { "pods" };
    format!("{} {plural}: {}", pods.len(), shortened_list(pods.iter()))
}

/// Formats the first names, and how many more there are.
fn shortened_list(names: impl ExactSizeIterator<Item = impl ToString>) -> String {
    let unlisted = names.len().saturating_sub(PODS_SHOWN);
    let listed: Vec<String> = names.take(PODS_SHOWN).map(|it| it.to_string()).collect();
    match unlisted {
        0 => listed.join(", "),
        _ => format!("{} and {unlisted} more", listed.join(", ")),
    }
}

/// Writes how many items are not listed.
pub(super) fn write_unlisted(out: &mut String, indent: &str, count: usize, listed: usize) {
    let unlisted = count.saturating_sub(listed);
    if unlisted > 0 {
        let _ = writeln!(out, "{indent}and {unlisted} more");
    }
}

/// Formats an offering and its price as a JSON object.
pub(super) fn offering_json(key: &OfferingKey, price: Price) -> Value {
    json!({
        "instance_type": key.instance_type.as_str(),
        "zone": key.zone.as_str(),
        "capacity_type": key.capacity_type.as_str(),
        "usd_per_h": round_usd(price.usd_per_h()),
    })
}

/// Rounds dollars to six decimals, which hides binary fractions.
pub(super) fn round_usd(usd: f64) -> f64 {
    (usd * 1e6).round() / 1e6
}
