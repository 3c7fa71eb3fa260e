//! Explains one pod: its requirements, where it will be scheduled, or why each pool rejects it.

use std::fmt::Write;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::model::affinity::{PodTerm, Preferred, TopologySpread};
use crate::model::id::PodKey;
use crate::model::pod::Pod;
use crate::model::requirement::Requirements;
use crate::model::selector::Selector;
use crate::model::taint::{Effect, Toleration};
use crate::plan::blocked_by_terminating::is_old;
use crate::plan::names::{closest_names, instance_type_names, name_distance};
use crate::plan::render_rejections::{quantity_json, rejection_line, rejections_json};
use crate::plan::{Plan, provision, render};
use crate::scheduling::cheaper_types::{Cheaper, TypeRejection, list_cheaper_types};
use crate::scheduling::rejection::bounded_text;
use crate::scheduling::{NewNodeClaim, PoolRejection};
use crate::state::State;
use crate::state::pod_status::PodDisposition;
use crate::state::snapshot::{NodeRef, Snapshot};

/// Maximum number of offerings and instance types listed in text output.
const TOLD: usize = 10;

/// Maximum number of listed items of one requirement. Further items are only counted.
const ASKED: usize = 8;

/// The message for a pod that kube-scheduler does not bind to a node on which it would fit.
const REFUSED: &str = "kube-scheduler does not bind the pod to this node, for a reason that is \
                       unknown to Outrigger; see the message of its condition PodScheduled";

/// The explanation of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained<'s> {
    /// The pod.
    pub pod: &'s Pod,
    /// The outcome.
    pub answer: PodOutcome,
}

/// The outcome of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PodOutcome {
    /// The pod does not wait for capacity.
    Stands(PodDisposition),
    /// The pod fits on an existing or in-flight node.
    Host {
        /// The node or claim.
        host: NodeRef,
        /// Number of other pods that the plan places on this node or claim.
        others: usize,
        /// Whether kube-scheduler has not bound the pod for a minute although the node is
        /// ready. The scheduler then has a reason that the plan does not know.
        refused: bool,
    },
    /// A new node is launched for the pod.
    Claim {
        /// The node.
        claim: NewNodeClaim,
        /// Why no cheaper type was chosen.
        cheaper: Vec<Cheaper>,
    },
    /// No node will be launched for the pod.
    Unplaced(Arc<[PoolRejection]>),
}

/// Explains a pod, or returns `None` if it does not exist.
pub fn explain<'s>(state: &'s State, key: &PodKey, now: Timestamp) -> Option<Explained<'s>> {
    let pod = state.objects.pods.get(key)?;
    let snapshot = state.snapshot(now);
    let answer = match state.pod_disposition(pod, &snapshot, now) {
        PodDisposition::Waits { .. } => {
            let plan = provision(&snapshot, now);
            let mut answer =
                planned_outcome(plan, key, |claim| list_cheaper_types(&snapshot, claim, key, now));
            if let PodOutcome::Host { host, refused, .. } = &mut answer {
                *refused = is_refused(pod, host, &snapshot, now);
            }
            answer
        }
        standing => PodOutcome::Stands(standing),
    };
    Some(Explained { pod, answer })
}

fn planned_outcome(
    plan: Plan,
    key: &PodKey,
    cheaper: impl Fn(&NewNodeClaim) -> Vec<Cheaper>,
) -> PodOutcome {
    if let Some(claim) =
        plan.launches.into_iter().find(|claim| claim.pods.binary_search(key).is_ok())
    {
        let cheaper = cheaper(&claim);
        return PodOutcome::Claim { claim, cheaper };
    }
    if let Some((host, pods)) = plan.placed.into_iter().find(|(_, pods)| pods.contains(key)) {
        return PodOutcome::Host { host, others: pods.len() - 1, refused: false };
    }
    let mut unplaced = plan.unplaced.into_iter();
    let pod = unplaced.find(|pod| pod.pod == *key);
    PodOutcome::Unplaced(pod.map_or_else(|| [].into(), |pod| pod.reasons))
}

/// Returns whether kube-scheduler does not bind a pod although it is planned on a ready node.
fn is_refused(pod: &Pod, host: &NodeRef, snapshot: &Snapshot<'_>, now: Timestamp) -> bool {
    let mut rooms = snapshot.rooms.iter();
    pod.node.is_none()
        && pod.unschedulable
        && is_old(pod, now)
        && rooms.any(|room| room.host == *host && room.initialized && room.open)
}

/// Returns pods with the same name in a different namespace or a similar name, closest first.
pub fn similar_pods(state: &State, key: &PodKey) -> Vec<String> {
    let pods = state.objects.pods.keys();
    closest_names(pods.filter_map(|known| {
        let distance = if known.name == key.name {
            Some(0)
        } else if known.namespace == key.namespace {
            name_distance(&known.name, &key.name)
        } else {
            None
        };
        Some((distance?, known))
    }))
}

impl Explained<'_> {
    /// Returns whether the pod is scheduled, will be scheduled, or needs nothing from Outrigger.
    pub fn is_handled(&self) -> bool {
        match &self.answer {
            PodOutcome::Unplaced(_) => false,
            PodOutcome::Stands(standing) => !matches!(
                standing,
                PodDisposition::Gated
                    | PodDisposition::OtherScheduler(_)
                    | PodDisposition::Grouped(_)
                    | PodDisposition::Failed(_)
            ),
            PodOutcome::Host { refused, .. } => !refused,
            PodOutcome::Claim { .. } => true,
        }
    }

    /// Renders one JSON object.
    pub fn json(&self) -> Value {
        let requests = self.pod.requests.iter();
        let requests =
            requests.map(|(name, amount)| (bounded_text(name), quantity_json(name, amount)));
        let mut value = json!({
            "format_version": render::FORMAT_VERSION,
            "pod": bounded_text(&self.pod.key),
            "requests": requests.collect::<serde_json::Map<String, Value>>(),
            "asks": constraint_lines(self.pod),
            "answer": self.outcome_code(),
        });
        match &self.answer {
            PodOutcome::Stands(standing) => {
                value["text"] = json!(disposition_text(standing));
                if let Some(host) = host_text(standing) {
                    value["host"] = json!(host);
                }
            }
            PodOutcome::Host { host, others, refused } => {
                value["host"] = json!(bounded_text(host));
                value["other_pods"] = json!(others);
                value["refused_by_scheduler"] = json!(refused);
            }
            PodOutcome::Claim { claim, cheaper } => value["claim"] = claim_json(claim, cheaper),
            PodOutcome::Unplaced(all) => value["reasons"] = rejections_json(all),
        }
        value
    }

    /// The name of the outcome in JSON.
    fn outcome_code(&self) -> &'static str {
        match &self.answer {
            PodOutcome::Host { .. } => "placed_on_existing",
            PodOutcome::Claim { .. } => "launch",
            PodOutcome::Unplaced(_) => "unplaced",
            PodOutcome::Stands(standing) => match standing {
                PodDisposition::Waits { .. } => "waits",
                PodDisposition::Bound(_) => "bound",
                PodDisposition::Expected(_) => "expected",
                PodDisposition::Ended => "ended",
                PodDisposition::Deleted => "deleted",
                PodDisposition::OfNode => "of_node",
                PodDisposition::Gated => "gated",
                PodDisposition::OtherScheduler(_) => "other_scheduler",
                PodDisposition::Preempts(_) => "preempts",
                PodDisposition::Grouped(_) => "grouped",
                PodDisposition::Failed(_) => "failed",
                PodDisposition::Untried => "untried",
            },
        }
    }

    /// Renders text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "Pod {}", bounded_text(&self.pod.key));
        let _ = writeln!(out, "  requests {}", bounded_text(&self.pod.requests));
        for asked in constraint_lines(self.pod) {
            let _ = writeln!(out, "  {asked}");
        }
        match &self.answer {
            PodOutcome::Stands(standing) => {
                let _ = writeln!(out, "\n  {}.", disposition_text(standing));
            }
            PodOutcome::Host { host, others, refused } => {
                let host = bounded_text(host);
                let planned = match others {
                    0 => String::new(),
                    1 => ", where 1 other pod is planned".to_owned(),
                    _ => format!(", where {others} other pods are planned"),
                };
                let _ = writeln!(out, "\n  + It fits on {host}{planned}.");
                if *refused {
                    let _ = writeln!(out, "  ! {REFUSED}.");
                }
            }
            PodOutcome::Claim { claim, cheaper } => write_claim(&mut out, claim, cheaper),
            PodOutcome::Unplaced(all) => {
                let _ = writeln!(out, "\n  ! It cannot be scheduled:");
                for rejection in all.iter() {
                    let _ = writeln!(out, "      {}", rejection_line(rejection));
                }
            }
        }
        out
    }
}

fn disposition_text(standing: &PodDisposition) -> String {
    match standing {
        PodDisposition::Waits { .. } => "It is waiting for capacity".to_owned(),
        PodDisposition::Bound(node) => format!("It is bound to node {}", bounded_text(node)),
        PodDisposition::Expected(host) => format!("It is planned for {}", bounded_text(host)),
        PodDisposition::Ended => "It has terminated".to_owned(),
        PodDisposition::Deleted => "It is being deleted".to_owned(),
        PodDisposition::OfNode => {
            "It is a static pod or a DaemonSet pod, which belongs to its node".to_owned()
        }
        PodDisposition::Gated => {
            "It has scheduling gates: no scheduler considers it until they are removed".to_owned()
        }
        PodDisposition::OtherScheduler(name) => format!(
            "Scheduler {} places it, and Outrigger launches no nodes for that scheduler; to change \
             this, add it to `schedulers` in the cluster's `scheduler` block",
            bounded_text(name)
        ),
        PodDisposition::Preempts(node) => {
            let node = bounded_text(node);
            format!("The scheduler preempts pods for it on node {node}")
        }
        PodDisposition::Grouped(group) => format!(
            "It belongs to PodGroup {}, which does not have enough pods to be scheduled",
            bounded_text(group)
        ),
        PodDisposition::Failed(reason) => format!(
            "The scheduler could not process it: {}; see the message of its condition PodScheduled",
            bounded_text(reason)
        ),
        PodDisposition::Untried => "The scheduler has not reported it as unschedulable".to_owned(),
    }
}

fn host_text(standing: &PodDisposition) -> Option<String> {
    match standing {
        PodDisposition::Bound(node) | PodDisposition::Preempts(node) => {
            Some(bounded_text(format_args!("node {node}")))
        }
        PodDisposition::Expected(host) => Some(bounded_text(host)),
        _ => None,
    }
}

fn claim_json(claim: &NewNodeClaim, all: &[Cheaper]) -> Value {
    let offerings = claim.offerings.iter();
    let offerings = offerings.map(|(key, price)| render::offering_json(key, *price));
    json!({
        "pool": claim.pool.as_str(),
        "offerings": offerings.collect::<Vec<_>>(),
        "instance_types": instance_type_names(claim),
        "other_pods": claim.pods.len() - 1,
        "cheaper_types": all.iter().map(cheaper_json).collect::<Vec<_>>(),
    })
}

fn cheaper_json(cheaper: &Cheaper) -> Value {
    let mut value = json!({
        "obstacle": cheaper.obstacle.as_str(),
        "types": cheaper.types,
        "nearest": cheaper.nearest.as_str(),
        "text": bounded_text(cheaper),
    });
    match (&cheaper.obstacle, cheaper.amounts) {
        (TypeRejection::Label(key), _) => value["label"] = json!(key),
        (TypeRejection::Together { pods }, _) => value["pods"] = json!(pods),
        (TypeRejection::Resource(name), Some((asked, left))) => {
            value["resource"] = json!(name);
            value["needed"] = quantity_json(name, asked);
            value["left"] = quantity_json(name, left);
        }
        _ => {}
    }
    value
}

fn write_claim(out: &mut String, claim: &NewNodeClaim, all: &[Cheaper]) {
    let others = match claim.pods.len() - 1 {
        0 => String::new(),
        1 => " and 1 other pod".to_owned(),
        others => format!(" and {others} other pods"),
    };
    let pool = &claim.pool;
    let _ = writeln!(out, "\n  + New node in pool {pool} for it{others}, the first available of:");
    for (offering, price) in claim.offerings.iter().take(TOLD) {
        let _ = writeln!(out, "      {offering}, {:.4} $/h", price.usd_per_h());
    }
    let unlisted = claim.offerings.len().saturating_sub(TOLD);
    if unlisted > 0 {
        let types = instance_type_names(claim).len();
        let _ = writeln!(out, "      and {unlisted} more, {types} instance types in all");
    }
    let count: usize = all.iter().map(|cheaper| cheaper.types).sum();
    if count == 0 {
        let _ = writeln!(out, "  The pool has no cheaper type.");
        return;
    }
    let _ = writeln!(out, "  The pool has {count} cheaper types, which were not chosen:");
    for cheaper in all {
        let _ = writeln!(out, "      {cheaper}");
    }
}

/// Lists the constraints of a pod except resources, one per line.
fn constraint_lines(pod: &Pod) -> Vec<String> {
    let selector = Requirements::from_labels(&pod.node_selector);
    let selector = Some(selector).filter(|selector| !selector.is_empty());
    let priority = Some(pod.priority).filter(|priority| *priority != 0);
    let (near, away) = (&pod.preferred_affinity, &pod.preferred_anti_affinity);
    let constraints = [
        ("node selector:", "", texts(&selector, bounded_text)),
        ("node affinity:", ", or ", texts(&pod.node_affinity, bounded_text)),
        (
            "preferred node affinity:",
            ", or ",
            texts(&pod.preferred_nodes, |Preferred { term, weight }| {
                format!("{} (weight {weight})", bounded_text(term))
            }),
        ),
        ("pod affinity:", " and ", texts(&pod.affinity, term_text)),
        ("pod anti-affinity:", " and ", texts(&pod.anti_affinity, term_text)),
        ("preferred pod affinity:", ", or ", texts(near, |preferred| term_text(&preferred.term))),
        (
            "preferred pod anti-affinity:",
            ", or ",
            texts(away, |preferred| term_text(&preferred.term)),
        ),
        ("topology spread:", "; ", texts(&pod.spread, spread_text)),
        ("tolerations:", ", ", texts(&pod.tolerations, toleration_text)),
        (
            "host ports:",
            ", ",
            texts(&pod.host_ports, |(protocol, _, number)| {
                bounded_text(format_args!("{protocol} {number}"))
            }),
        ),
        ("volume claims:", ", ", texts(&pod.volume_claims, bounded_text)),
        ("gang:", "", texts(&pod.gang, |gang| bounded_text(&gang.name))),
    ];
    let constraints = constraints
        .into_iter()
        .filter(|(_, _, all)| !all.is_empty())
        .map(|(what, glue, all)| format!("{what} {}", all.join(glue)));
    constraints.chain(priority.map(|priority| format!("priority: {priority}"))).collect()
}

/// Formats the first of these items, and how many more there are.
fn texts<T>(items: impl IntoIterator<Item = T>, text: impl Fn(T) -> String) -> Vec<String> {
    let mut texts: Vec<String> = items.into_iter().map(text).collect();
    let unlisted = texts.len().saturating_sub(ASKED);
    texts.truncate(ASKED);
    if unlisted > 0 {
        texts.push(format!("{unlisted} more"));
    }
    texts
}

fn spread_text(spread: &TopologySpread) -> String {
    let preferred = if spread.is_hard { "" } else { ", preferred" };
    let (key, skew) = (bounded_text(&spread.topology_key), spread.max_skew);
    format!("{} over {key}, maxSkew {skew}{preferred}", selector_text(spread.selector.as_ref()))
}

fn toleration_text(toleration: &Toleration) -> String {
    let effect = toleration.effect.map_or("any effect", Effect::as_str);
    let key = match toleration.key.as_str() {
        "" => "any taint",
        key => key,
    };
    bounded_text(format_args!("{key}:{effect}"))
}

fn term_text(term: &PodTerm) -> String {
    format!("{} on {}", selector_text(term.selector.as_ref()), bounded_text(&term.topology_key))
}

fn selector_text(selector: Option<&Selector>) -> String {
    let Some(selector) = selector else {
        return "no pods".to_owned();
    };
    let expressions = selector.expressions().iter();
    let expressions: Vec<String> =
        expressions.map(|(key, requirement)| format!("{key} {requirement}")).collect();
    match expressions.len() {
        0 => "all pods".to_owned(),
        _ => format!("pods with {}", bounded_text(expressions.join(", "))),
    }
}
