//! Explains one node: its verdict for each disruption reason, and the blockers of each pod.

use std::collections::BTreeMap;
use std::fmt::Write;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::disruption::expiry::candidate_expiry;
use crate::disruption::verdict::Verdict;
use crate::model::eviction::COST_OF_ONE;
use crate::model::id::NodeName;
use crate::model::instance::Price;
use crate::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, POOL, ZONE};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::{Pool, Reason};
use crate::model::sweep::SweepKind;
use crate::plan::names::{closest_names, name_distance};
use crate::plan::{Plan, full_plan, render};
use crate::scheduling::rejection::bounded_text;
use crate::state::State;
use crate::state::disruption_blockers::{DisruptionBlocker, InvalidInput, PodBlocker};
use crate::state::sweeps::scheduled_sweeps;

/// Disruption reasons in evaluation order.
pub(super) const REASONS: [Reason; 6] = [
    Reason::Unhealthy,
    Reason::Empty,
    Reason::Surplus,
    Reason::Drifted,
    Reason::Underutilized,
    Reason::Expired,
];

/// Maximum number of pods listed in text output.
const TOLD: usize = 50;

/// The explanation of one node.
#[derive(Clone, Debug)]
pub struct ExplainedNode<'s> {
    /// The node.
    pub node: &'s Node,
    /// Its price, if the catalog contains it.
    pub price: Option<Price>,
    /// Utilization of cpu or memory in per cent, whichever is higher, and the disruption cost.
    /// `None` if the node is not a candidate.
    pub weight: Option<(Option<u32>, f64)>,
    /// The outcome for each reason.
    pub outlooks: Vec<(Reason, ReasonOutcome)>,
    /// All disruption blockers.
    pub blockers: Vec<DisruptionBlocker>,
    /// Invalid values of the node and its pods.
    pub misreads: Vec<InvalidInput>,
    /// Its pods.
    pub pods: Vec<Tenant<'s>>,
    /// When the node expires. `None` if it does not expire.
    pub expires: Option<Timestamp>,
    /// The next scheduled change, if known.
    pub next: Option<Timestamp>,
}

/// The outcome for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReasonOutcome {
    /// The node would be disrupted now.
    Leaves,
    /// The node is due, and waits for the next sweep at this time, unless the last sweep found it.
    Sweep(SweepKind, Timestamp),
    /// The node is kept because of this verdict.
    Kept(Verdict),
    /// The node becomes due at this time.
    Due(Timestamp),
    /// The reason does not apply to the node.
    Nothing,
}

/// A pod on a node.
#[derive(Clone, Debug)]
pub struct Tenant<'s> {
    /// The pod.
    pub pod: &'s Pod,
    /// The blocker of its eviction, if any.
    pub hold: Option<PodBlocker>,
}

/// Explains a node, or returns `None` if it does not exist.
pub fn explain_node<'s>(state: &'s State, name: &str, now: Timestamp) -> Option<ExplainedNode<'s>> {
    let node = state.objects.nodes.get(name)?;
    let disruption_view = state.disruption_view(now);
    let candidate =
        disruption_view.candidates.iter().find(|candidate| candidate.node.name == node.name);
    let pool = state.cluster.pool(node.labels.get(POOL).map_or("", String::as_str));
    let expires = candidate.and_then(|candidate| candidate_expiry(candidate, pool?));
    let plan = full_plan(state, now);
    let claim = candidate.and_then(|candidate| candidate.claim);
    let is_overdue = claim.is_some_and(|claim| claim.record.is_overdue(now));
    let sweeps = scheduled_sweeps(&state.cluster, now);
    let is_static = pool.is_some_and(|pool| pool.replicas.is_some());
    let outlooks: Vec<_> = REASONS
        .into_iter()
        .filter(|reason| is_static || *reason != Reason::Surplus)
        .map(|reason| {
            let outcome = match candidate {
                Some(_) => outcome_for(&plan, &node.name, reason, expires.filter(|at| *at > now))
                    .or_sweep(reason, &sweeps, is_overdue),
                None => ReasonOutcome::Kept(no_candidate_verdict(state, node, pool)),
            };
            (reason, outcome)
        })
        .collect();
    let blockers: Vec<DisruptionBlocker> = state.disruption_blockers(node, claim, now).collect();
    let pods = state.objects.pods_on(name).map(|pod| {
        let of_pod = blockers.iter().find_map(|blocker| match blocker {
            DisruptionBlocker::Pod(key, hold) if *key == pod.key => Some(hold.clone()),
            _ => None,
        });
        Tenant { pod, hold: of_pod }
    });
    let pods = pods.collect();
    let next = next_change(&outlooks, &blockers, now);
    Some(ExplainedNode {
        node,
        price: state.price_of(node, claim),
        weight: candidate.map(|candidate| (candidate.utilization, candidate.cost)),
        outlooks,
        blockers,
        misreads: state.invalid_inputs_of_node(node).take(TOLD).collect(),
        pods,
        expires,
        next,
    })
}

fn outcome_for(
    plan: &Plan,
    node: &NodeName,
    reason: Reason,
    due: Option<Timestamp>,
) -> ReasonOutcome {
    let mut leaving = plan.retire.iter();
    if leaving.any(|termination| termination.node == *node && termination.reason == reason) {
        return ReasonOutcome::Leaves;
    }
    let mut kept = plan.kept.iter();
    let kept = kept.find(|kept| kept.node == *node && kept.reason == reason);
    match (kept, due) {
        (Some(node), _) => ReasonOutcome::Kept(node.verdict.clone()),
        (None, Some(at)) if reason == Reason::Expired => ReasonOutcome::Due(at),
        (None, _) => ReasonOutcome::Nothing,
    }
}

/// Returns why a node is not a candidate for any reason.
fn no_candidate_verdict(state: &State, node: &Node, pool: Option<&Pool>) -> Verdict {
    let mut claims = state.ledger.claims.values();
    let claim = claims.find(|claim| claim.node.as_ref() == Some(&node.name));
    match claim.map(|claim| (claim.leaving, claim.replaced_since)) {
        Some((Some(reason), _)) => Verdict::Leaving(reason),
        Some((None, Some(_))) => Verdict::Replaced,
        Some((None, None)) => Verdict::NotInitialized,
        None if node.labels.contains_key(POOL) && pool.is_none() => Verdict::NoPool,
        None => Verdict::Unmanaged,
    }
}

fn next_change(
    outlooks: &[(Reason, ReasonOutcome)],
    blockers: &[DisruptionBlocker],
    now: Timestamp,
) -> Option<Timestamp> {
    let due = outlooks.iter().filter_map(|(_, outcome)| outcome.changes_at());
    let ends = blockers.iter().filter_map(DisruptionBlocker::ends_at);
    due.chain(ends).filter(|at| *at > now).min()
}

/// Returns nodes with names similar to an unknown name, closest first.
pub fn similar_nodes(state: &State, name: &str) -> Vec<String> {
    similar_names(state.objects.nodes.keys().map(NodeName::as_str), name)
}

/// Returns names similar to an unknown name, closest first.
pub(super) fn similar_names<'n>(names: impl Iterator<Item = &'n str>, name: &str) -> Vec<String> {
    closest_names(names.filter_map(|known| Some((name_distance(known, name)?, known))))
}

impl ReasonOutcome {
    /// Returns that a due node waits for a sweep, if sweeps for this reason have a schedule.
    /// A node beyond its maximum age does not wait.
    fn or_sweep(
        self,
        reason: Reason,
        sweeps: &BTreeMap<SweepKind, Timestamp>,
        is_overdue: bool,
    ) -> Self {
        let waits = SweepKind::that_delays(reason).filter(|_| !is_overdue);
        let waits = waits.and_then(|kind| Some((kind, *sweeps.get(&kind)?)));
        match (self, waits) {
            (Self::Leaves, Some((kind, at))) => Self::Sweep(kind, at),
            (outcome, _) => outcome,
        }
    }

    /// The spelling in JSON.
    fn code(&self) -> &'static str {
        match self {
            Self::Leaves => "leaves",
            Self::Sweep(..) => "awaits_sweep",
            Self::Kept(verdict) => verdict.code(),
            Self::Due(_) => "due",
            Self::Nothing => "nothing",
        }
    }

    /// Returns when the outcome changes by itself, if known.
    fn changes_at(&self) -> Option<Timestamp> {
        match self {
            Self::Due(at) | Self::Sweep(_, at) => Some(*at),
            Self::Kept(verdict) => verdict.ends_at(),
            Self::Leaves | Self::Nothing => None,
        }
    }

    fn json(&self, reason: Reason) -> Value {
        json!({
            "reason": reason.as_str(),
            "verdict": self.code(),
            "text": self.outcome_text(),
            "until": self.changes_at().map(|at| at.to_string()),
        })
    }

    fn outcome_text(&self) -> String {
        match self {
            Self::Leaves => "would be disrupted now".to_owned(),
            Self::Sweep(kind, at) => {
                format!("due; the next {} sweep checks it at {at}", kind.as_str())
            }
            Self::Kept(verdict) => bounded_text(verdict),
            Self::Due(at) => format!("expires at {at}"),
            Self::Nothing => "no".to_owned(),
        }
    }
}

impl Tenant<'_> {
    /// Returns the pod kind for disruption.
    fn kind(&self) -> &'static str {
        let pod = self.pod;
        if pod.is_terminal() {
            "ended"
        } else if pod.is_mirror() {
            "mirror"
        } else if pod.is_daemon() {
            "daemon"
        } else if !pod.is_reschedulable() {
            "ending"
        } else if pod.holds_node() {
            "in_use"
        } else {
            "worth_nothing"
        }
    }

    fn json(&self) -> Value {
        json!({
            "pod": bounded_text(&self.pod.key),
            "kind": self.kind(),
            "disruption_cost": pod_disruption_cost(self.pod),
            "blocker": self.hold.as_ref().map(PodBlocker::code),
        })
    }

    fn pod_text(&self) -> String {
        let (pod, cost) = (bounded_text(&self.pod.key), pod_disruption_cost(self.pod));
        let what = match self.kind() {
            "ended" => "has terminated".to_owned(),
            "mirror" => "is a static pod and terminates with the node".to_owned(),
            "daemon" => "is a DaemonSet pod and terminates with the node".to_owned(),
            "ending" => "is terminating".to_owned(),
            "worth_nothing" => format!("does not keep the node (disruption cost {cost:.1})"),
            _ => format!("must be rescheduled (disruption cost {cost:.1})"),
        };
        match &self.hold {
            Some(hold) => format!("{pod} {what}; it {}", bounded_text(hold)),
            None => format!("{pod} {what}"),
        }
    }
}

/// Returns the disruption cost of a pod. The default is one.
#[expect(clippy::cast_precision_loss, reason = "it is within ten times a power of two")]
fn pod_disruption_cost(pod: &Pod) -> f64 {
    pod.eviction_cost() as f64 / COST_OF_ONE as f64
}

fn blocker_json(blocker: &DisruptionBlocker) -> Value {
    json!({
        "code": blocker.code(),
        "text": bounded_text(blocker),
        "pod": blocker.blocking_pod().map(bounded_text),
        "until": blocker.ends_at().map(|at| at.to_string()),
        "yields_to_grace_period": blocker.yields_to_grace(),
    })
}

fn misread_json(misread: &InvalidInput) -> Value {
    json!({ "of": bounded_text(&misread.of), "text": bounded_text(&misread.why) })
}

impl ExplainedNode<'_> {
    fn label(&self, key: &str) -> Option<String> {
        self.node.labels.get(key).map(bounded_text)
    }

    /// Renders one JSON object.
    pub fn json(&self) -> Value {
        let outlooks = self.outlooks.iter();
        let outlooks = outlooks.map(|(reason, outcome)| outcome.json(*reason));
        json!({
            "format_version": render::FORMAT_VERSION,
            "node": bounded_text(&self.node.name),
            "pool": self.label(POOL),
            "instance_type": self.label(INSTANCE_TYPE),
            "capacity_type": self.label(CAPACITY_TYPE),
            "zone": self.label(ZONE),
            "usd_per_h": self.price.map(Price::usd_per_h),
            "utilization_percent": self.weight.and_then(|(used, _)| used),
            "disruption_cost": self.weight.map(|(_, cost)| cost),
            "verdicts": outlooks.collect::<Vec<_>>(),
            "blockers": self.blockers.iter().map(blocker_json).collect::<Vec<_>>(),
            "misread": self.misreads.iter().map(misread_json).collect::<Vec<_>>(),
            "pods": self.pods.iter().map(Tenant::json).collect::<Vec<_>>(),
            "expires": self.expires.map(|at| at.to_string()),
            "next_change": self.next.map(|at| at.to_string()),
        })
    }

    /// Renders text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let pool = self.label(POOL);
        let pool = pool.map_or("no pool".to_owned(), |name| format!("pool {name}"));
        // Writing to a String cannot fail.
        let _ = writeln!(out, "Node {}, {pool}", bounded_text(&self.node.name));
        let offering = [INSTANCE_TYPE, CAPACITY_TYPE, ZONE]
            .map(|key| self.label(key).unwrap_or("?".to_owned()))
            .join(" ");
        let price = self
            .price
            .map_or("unknown price".to_owned(), |price| format!("{:.4} $/h", price.usd_per_h()));
        let _ = writeln!(out, "  {offering}, {price}");
        if let Some((used, cost)) = self.weight {
            let used = used.map_or("unknown".to_owned(), |percent| format!("{percent} %"));
            let _ = writeln!(out, "  utilization {used}, disruption cost {cost:.1}");
        }
        let _ = writeln!(out);
        let lengths = REASONS.iter().map(|reason| reason.as_str().len());
        let width = lengths.max().unwrap_or(0);
        for (reason, outcome) in &self.outlooks {
            let reason = reason.as_str();
            let is_leaving = *outcome == ReasonOutcome::Leaves;
            let sign = if is_leaving { '-' } else { ' ' };
            let _ = writeln!(out, "  {sign} {reason:width$}  {}", outcome.outcome_text());
        }
        if let Some(at) = self.next {
            let _ = writeln!(out, "\n  Next scheduled change: {at}.");
        }
        let blockers = self.blockers.iter();
        for blocker in blockers.filter(|blocker| blocker.blocking_pod().is_none()) {
            let _ = writeln!(out, "\n  ! {}", bounded_text(blocker));
        }
        for InvalidInput { of, why } in &self.misreads {
            let _ = writeln!(out, "\n  ? {}: {}", bounded_text(of), bounded_text(why));
        }
        self.write_pods(&mut out);
        out
    }

    /// Lists blocking pods first.
    fn write_pods(&self, out: &mut String) {
        if self.pods.is_empty() {
            let _ = writeln!(out, "\n  No pods run on it.");
            return;
        }
        let _ = writeln!(out, "\n  Its pods:");
        let held = self.pods.iter().filter(|pod| pod.hold.is_some());
        let others = self.pods.iter().filter(|pod| pod.hold.is_none());
        for tenant in held.chain(others).take(TOLD) {
            let sign = if tenant.hold.is_some() { '!' } else { ' ' };
            let _ = writeln!(out, "    {sign} {}", tenant.pod_text());
        }
        render::write_unlisted(out, "      ", self.pods.len(), TOLD);
    }
}
