//! One pod explained: what it asks for, where it goes and as what, or what stops it in each pool.
//! It must not know who asks, nor decide anything.

use std::fmt::Write;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::model::affinity::PodTerm;
use crate::model::id::PodKey;
use crate::model::pod::Pod;
use crate::model::requirement::Requirements;
use crate::model::selector::Selector;
use crate::plan::blocked_by_terminating::PATIENCE;
use crate::plan::{Plan, provision, render, render_rejections};
use crate::scheduling::cheaper_types::{Cheaper, TypeRejection, cheaper};
use crate::scheduling::rejection::part;
use crate::scheduling::{NewNodeClaim, PoolRejection};
use crate::state::State;
use crate::state::pod_status::PodDisposition;
use crate::state::snapshot::{ExistingNode, NodeRef, Snapshot};

/// Offerings that are told one by one, and instance types.
const TOLD: usize = 10;

/// Things of one kind that a pod asks for, before the rest is counted.
const ASKED: usize = 8;

/// Names that are offered where there is no such pod.
const NAMES: usize = 5;

/// The text of a pod that kube-scheduler does not bind where it would fit.
const REFUSED: &str = "kube-scheduler refuses this node for a reason that Outrigger does not know: \
                       the condition PodScheduled of the pod has the message";

/// How far apart two names may be to be taken for one another.
const DISTANCE: usize = 3;

/// Names longer than this are not compared: that takes the product of the lengths.
const LENGTH_MAX: usize = 253;

/// What is to be said of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained<'s> {
    /// The pod.
    pub pod: &'s Pod,
    /// What becomes of it.
    pub answer: PodOutcome,
}

/// What becomes of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PodOutcome {
    /// It does not wait for capacity.
    Stands(PodDisposition),
    /// A host that is there or on its way takes it.
    Host {
        /// The host.
        host: NodeRef,
        /// How many others the same plan puts there.
        others: usize,
        /// Whether kube-scheduler has not bound the pod there for [`PATIENCE`] although the host is
        /// a Node that takes pods: it has a reason that plans do not know.
        refused: bool,
    },
    /// A node is made for it.
    Claim {
        /// The node.
        claim: NewNodeClaim,
        /// Why it is nothing cheaper.
        cheaper: Vec<Cheaper>,
    },
    /// Nothing is done for it.
    Unplaced(Arc<[PoolRejection]>),
}

/// Explains a pod; none where there is no such pod.
pub fn explain<'s>(state: &'s State, key: &PodKey, now: Timestamp) -> Option<Explained<'s>> {
    let pod = state.objects.pods.get(key)?;
    let snapshot = state.snapshot(now);
    let answer = match state.standing(pod, &snapshot, now) {
        PodDisposition::Waits { .. } => {
            let plan = provision(&snapshot, now);
            let mut answer = planned(plan, key, |claim| cheaper(&snapshot, claim, key, now));
            if let PodOutcome::Host { host, refused, .. } = &mut answer {
                *refused = is_refused(pod, host, &snapshot, now);
            }
            answer
        }
        standing => PodOutcome::Stands(standing),
    };
    Some(Explained { pod, answer })
}

fn planned(
    plan: Plan,
    key: &PodKey,
    cheaper: impl Fn(&NewNodeClaim) -> Vec<Cheaper>,
) -> PodOutcome {
    let of_claim = |claim: &NewNodeClaim| claim.pods.binary_search(key).is_ok();
    if let Some(claim) = plan.launches.into_iter().find(of_claim) {
        let cheaper = cheaper(&claim);
        return PodOutcome::Claim { claim, cheaper };
    }
    let of_host = |(_, pods): &(NodeRef, Vec<PodKey>)| pods.contains(key);
    if let Some((host, pods)) = plan.placed.into_iter().find(of_host) {
        return PodOutcome::Host {
            host,
            others: pods.len() - 1,
            refused: false,
        };
    }
    let mut unplaced = plan.unplaced.into_iter();
    let own = unplaced.find(|own| own.pod == *key);
    PodOutcome::Unplaced(own.map_or_else(|| [].into(), |own| own.reasons))
}

/// Whether kube-scheduler leaves a pod waiting although its place is on a Node that takes pods.
fn is_refused(pod: &Pod, host: &NodeRef, snapshot: &Snapshot<'_>, now: Timestamp) -> bool {
    let takes_pods = |room: &ExistingNode| room.host == *host && room.initialized && room.open;
    let is_old = pod
        .created
        .is_some_and(|at| now.duration_since(at) >= PATIENCE);
    pod.node.is_none() && pod.unschedulable && is_old && snapshot.rooms.iter().any(takes_pods)
}

/// Pods that may have been meant by a key that no pod has: of the same name elsewhere, or of a
/// similar one, the nearest first.
pub fn similar(state: &State, key: &PodKey) -> Vec<String> {
    let distance = |own: &PodKey| {
        if own.name == key.name {
            return Some(0);
        }
        let long = own.name.len().max(key.name.len()) > LENGTH_MAX;
        if own.namespace != key.namespace || long {
            return None;
        }
        let apart = strsim::osa_distance(&own.name, &key.name);
        let starts = own.name.starts_with(&key.name) && !key.name.is_empty();
        (apart <= DISTANCE || starts).then_some(if starts { DISTANCE } else { apart })
    };
    let pods = state.objects.pods.keys();
    let mut near: Vec<(usize, &PodKey)> =
        pods.filter_map(|own| Some((distance(own)?, own))).collect();
    near.sort_unstable();
    near.into_iter()
        .take(NAMES)
        .map(|(_, own)| part(own))
        .collect()
}

impl Explained<'_> {
    /// Whether it has a place, will have one, or needs none of us.
    pub fn is_well(&self) -> bool {
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

    /// One JSON object.
    pub fn json(&self) -> Value {
        let requests = self.pod.requests.iter();
        let requests =
            requests.map(|(name, own)| (part(name), render_rejections::amount(name, own)));
        let mut value = json!({
            "format_version": render::FORMAT_VERSION,
            "pod": part(&self.pod.key),
            "requests": requests.collect::<serde_json::Map<String, Value>>(),
            "asks": asks(self.pod),
            "answer": self.word(),
        });
        match &self.answer {
            PodOutcome::Stands(standing) => {
                value["text"] = json!(stands(standing));
                if let Some(host) = host(standing) {
                    value["host"] = json!(host);
                }
            }
            PodOutcome::Host {
                host,
                others,
                refused,
            } => {
                value["host"] = json!(part(host));
                value["other_pods"] = json!(others);
                value["refused_by_scheduler"] = json!(refused);
            }
            PodOutcome::Claim { claim, cheaper } => value["claim"] = claimed(claim, cheaper),
            PodOutcome::Unplaced(all) => {
                let all = all.iter().map(render_rejections::json);
                value["reasons"] = json!(all.collect::<Vec<_>>());
            }
        }
        value
    }

    /// The spelling of the answer in JSON.
    fn word(&self) -> &'static str {
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

    /// Text for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "Pod {}", part(&self.pod.key));
        let _ = writeln!(out, "  needs {}", part(&self.pod.requests));
        for asked in asks(self.pod) {
            let _ = writeln!(out, "  {asked}");
        }
        match &self.answer {
            PodOutcome::Stands(standing) => {
                let _ = writeln!(out, "\n  {}.", stands(standing));
            }
            PodOutcome::Host {
                host,
                others,
                refused,
            } => {
                let host = part(host);
                let _ = writeln!(
                    out,
                    "\n  + {host} takes it, and {others} other pods with it."
                );
                if *refused {
                    let _ = writeln!(out, "  ! {REFUSED}.");
                }
            }
            PodOutcome::Claim { claim, cheaper } => claim_text(&mut out, claim, cheaper),
            PodOutcome::Unplaced(all) => {
                let _ = writeln!(out, "\n  ! There is no place for it:");
                for why in all.iter() {
                    let _ = writeln!(out, "      {}", render_rejections::line(why));
                }
            }
        }
        out
    }
}

fn stands(standing: &PodDisposition) -> String {
    match standing {
        PodDisposition::Waits { .. } => "It waits for capacity".to_owned(),
        PodDisposition::Bound(node) => format!("It is on node {}", part(node)),
        PodDisposition::Expected(host) => format!("It is expected on {}", part(host)),
        PodDisposition::Ended => "It has ended".to_owned(),
        PodDisposition::Deleted => "Its deletion was asked for".to_owned(),
        PodDisposition::OfNode => "It belongs to a node and comes and goes with it".to_owned(),
        PodDisposition::Gated => {
            "Scheduling gates hold it back: who set them has to take them away \
                            before any scheduler looks at it"
                .to_owned()
        }
        PodDisposition::OtherScheduler(name) => format!(
            "Scheduler {} places it, for which no nodes are made; name it in `schedulers` of the \
             cluster's `scheduler` block if they shall be",
            part(name)
        ),
        PodDisposition::Preempts(node) => {
            format!("The scheduler makes room for it on node {}", part(node))
        }
        PodDisposition::Grouped(group) => format!(
            "It is of PodGroup {}: the scheduler looks at it once enough pods of that are there",
            part(group)
        ),
        PodDisposition::Failed(reason) => format!(
            "The scheduler has no answer for it: {}; its condition PodScheduled has the message",
            part(reason)
        ),
        PodDisposition::Untried => "The scheduler has not said that it fits nowhere".to_owned(),
    }
}

fn host(standing: &PodDisposition) -> Option<String> {
    match standing {
        PodDisposition::Bound(node) | PodDisposition::Preempts(node) => {
            Some(part(format_args!("node {node}")))
        }
        PodDisposition::Expected(host) => Some(part(host)),
        _ => None,
    }
}

/// The instance types of a claim in the order in which they are asked for.
fn types(claim: &NewNodeClaim) -> Vec<&str> {
    let mut types: Vec<&str> = Vec::new();
    for (offering, _) in &claim.offerings {
        let name = offering.instance_type.as_str();
        if !types.contains(&name) {
            types.push(name);
        }
    }
    types
}

fn claimed(claim: &NewNodeClaim, all: &[Cheaper]) -> Value {
    let offering = |(own, price): &(crate::model::instance::OfferingKey, _)| {
        let price: &crate::model::instance::Price = price;
        json!({
            "instance_type": own.instance_type.as_str(),
            "zone": own.zone.as_str(),
            "capacity_type": own.capacity_type.as_str(),
            "usd_per_h": render::round(price.usd_per_h()),
        })
    };
    let cheaper = |own: &Cheaper| {
        let mut value = json!({
            "obstacle": own.obstacle.as_str(),
            "types": own.types,
            "nearest": own.nearest.as_str(),
            "text": part(own),
        });
        match (&own.obstacle, own.amounts) {
            (TypeRejection::Label(key), _) => value["label"] = json!(key),
            (TypeRejection::Together { pods }, _) => value["pods"] = json!(pods),
            (TypeRejection::Resource(name), Some((asked, left))) => {
                value["resource"] = json!(name);
                value["needed"] = render_rejections::amount(name, asked);
                value["left"] = render_rejections::amount(name, left);
            }
            _ => {}
        }
        value
    };
    json!({
        "pool": claim.pool.as_str(),
        "offerings": claim.offerings.iter().map(offering).collect::<Vec<_>>(),
        "instance_types": types(claim),
        "other_pods": claim.pods.len() - 1,
        "cheaper_types": all.iter().map(cheaper).collect::<Vec<_>>(),
    })
}

fn claim_text(out: &mut String, claim: &NewNodeClaim, all: &[Cheaper]) {
    let others = claim.pods.len() - 1;
    let _ = writeln!(
        out,
        "\n  + A node is made for it in pool {}, and for {others} other pods, the first of these \
         that can be had:",
        claim.pool
    );
    for (offering, price) in claim.offerings.iter().take(TOLD) {
        let _ = writeln!(out, "      {offering}, {:.4} $/h", price.usd_per_h());
    }
    let rest = claim.offerings.len().saturating_sub(TOLD);
    if rest > 0 {
        let types = types(claim).len();
        let _ = writeln!(out, "      and {rest} more, {types} instance types in all");
    }
    let count: usize = all.iter().map(|own| own.types).sum();
    if count == 0 {
        let _ = writeln!(out, "  The pool has no cheaper type.");
        return;
    }
    let _ = writeln!(out, "  The pool has {count} cheaper types, of which");
    for own in all {
        let _ = writeln!(out, "      {own}");
    }
}

/// What a pod asks for beside resources, as it is read, one thing a line.
fn asks(pod: &Pod) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |what: &str, mut all: Vec<String>, glue: &str| {
        let rest = all.len().saturating_sub(ASKED);
        all.truncate(ASKED);
        if rest > 0 {
            all.push(format!("{rest} more"));
        }
        if !all.is_empty() {
            lines.push(format!("{what} {}", all.join(glue)));
        }
    };
    let selector = Requirements::from_labels(&pod.node_selector);
    let labels = |own: &Requirements| part(own);
    if !selector.is_empty() {
        line("node labels:", vec![labels(&selector)], "");
    }
    let affinity = pod.node_affinity.iter().map(labels).collect();
    line("node affinity:", affinity, ", or ");
    let wished = pod.preferred_nodes.iter();
    let wished = wished.map(|own| format!("{} (weight {})", labels(&own.term), own.weight));
    line("would like nodes with", wished.collect(), ", or ");
    line("near", pod.affinity.iter().map(term).collect(), " and ");
    line(
        "away from",
        pod.anti_affinity.iter().map(term).collect(),
        " and ",
    );
    let wished = pod.preferred_affinity.iter().map(|own| term(&own.term));
    line("would like to be near", wished.collect(), ", or ");
    let wished = pod
        .preferred_anti_affinity
        .iter()
        .map(|own| term(&own.term));
    line("would like to be away from", wished.collect(), ", or ");
    let spread = pod.spread.iter().map(|own| {
        let wish = if own.is_hard { "" } else { ", as a wish" };
        let (key, skew) = (part(&own.topology_key), own.max_skew);
        format!(
            "{} over {key}, skew {skew} at most{wish}",
            pods(own.selector.as_ref())
        )
    });
    line("spreads", spread.collect(), "; ");
    let tolerations = pod.tolerations.iter().map(|own| {
        let effect = own.effect.map_or("any effect", |effect| effect.as_str());
        let key = own.key.as_str();
        part(format_args!(
            "{}:{effect}",
            if key.is_empty() { "any taint" } else { key }
        ))
    });
    line("tolerates", tolerations.collect(), ", ");
    let ports = pod.host_ports.iter();
    let ports = ports.map(|(protocol, _, number)| part(format_args!("{protocol} {number}")));
    line("host ports:", ports.collect(), ", ");
    line(
        "volume claims:",
        pod.volume_claims.iter().map(part).collect(),
        ", ",
    );
    line(
        "gang:",
        pod.gang.iter().map(|own| part(&own.name)).collect(),
        "",
    );
    if pod.priority != 0 {
        line("priority:", vec![pod.priority.to_string()], "");
    }
    lines
}

fn term(term: &PodTerm) -> String {
    format!(
        "{} by {}",
        pods(term.selector.as_ref()),
        part(&term.topology_key)
    )
}

fn pods(selector: Option<&Selector>) -> String {
    let Some(selector) = selector else {
        return "no pods".to_owned();
    };
    let all = selector.expressions().iter();
    let all: Vec<String> = all.map(|(key, own)| format!("{key} {own}")).collect();
    match all.len() {
        0 => "all pods".to_owned(),
        _ => format!("pods with {}", part(all.join(", "))),
    }
}
