//! Adoption of nodes that Karpenter launched for configured pools. In observe mode these nodes
//! count as claims. In manage mode the engine adds Outrigger's tags to their instances.
//!
//! The reasons and checks are in docs/decisions/031-adoption.md.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::engine::backoff::Backoff;
use crate::engine::claims;
use crate::engine::command::{Command, NodePatch};
use crate::engine::context::Context;
use crate::engine::controllers::{AdoptionAttempt, AdoptionController, Unclaimed};
use crate::engine::in_flight::CommandPurpose;
use crate::engine::in_place_update;
use crate::engine::report::Report;
use crate::model::claim::{ADOPTED, ClaimPhase};
use crate::model::id::{ClaimId, NodeName, PoolName};
use crate::model::instance::OfferingKey;
use crate::model::labels::CLAIM;
use crate::model::node::Node;
use crate::model::pod::PodPhase;
use crate::model::template_hash::record_in;
use crate::provider::{Adoption, CommandResult, FailureKind, Launch};
use crate::state::node_claims::NodeClaim;

/// Maximum number of instances tagged simultaneously: EC2 accepts about ten calls per second.
const ADOPTIONS_MAX: usize = 16;

/// A listing shows new tags within seconds. If no listing shows them after this time, the instance
/// is tagged again.
const SHOWN_MAX: SignedDuration = SignedDuration::from_secs(60);

impl AdoptionAttempt {
    /// Returns the earliest time of the next attempt to tag the instance, if the attempt has to
    /// wait.
    fn next_attempt(&self) -> Option<Timestamp> {
        let listed_by = self.done.and_then(|at| at.checked_add(SHOWN_MAX).ok());
        listed_by.or(self.retry.next_attempt())
    }
}

impl AdoptionController {
    /// Returns whether an instance was tagged and no listing shows its new tags yet.
    pub(super) fn awaits_listing(&self) -> bool {
        self.nodes.values().any(|node| node.done.is_some())
    }
}

impl Unclaimed {
    /// Tags the instances that Karpenter launched for configured pools.
    pub(super) fn adopt_instances(&mut self, cx: &mut Context, now: Timestamp) {
        if !cx.state.cluster.adopt {
            self.adoption = AdoptionController::default();
            return;
        }
        self.report_unadopted(cx);
        if !cx.is_managing() {
            self.adoption = AdoptionController {
                left: std::mem::take(&mut self.adoption.left),
                ..AdoptionController::default()
            };
            return;
        }
        // Karpenter finishes the startup of its nodes. If Outrigger adopted them earlier, its
        // startup timeouts could expire.
        let adoptable = cx.state.adoptable_nodes().filter(|node| node.is_initialized());
        let adoptable: BTreeMap<&NodeName, &Node> =
            adoptable.map(|node| (&node.name, node)).collect();
        if adoptable.is_empty() {
            self.adoption.nodes.clear();
            return;
        }
        if let Some(at) = self.adoption.pause.next_attempt().filter(|at| *at > now) {
            cx.outbox.wake_at(at, "adopt an instance");
            return;
        }
        if runs_karpenter(cx) {
            return;
        }
        let mut nodes = std::mem::take(&mut self.adoption.nodes);
        nodes.retain(|name, _| adoptable.contains_key(name));
        let in_flight = nodes.values().filter(|node| node.in_flight).count();
        let mut free = ADOPTIONS_MAX.saturating_sub(in_flight);
        let (mut next, mut due) = (None, Vec::new());
        for node in adoptable.into_values() {
            let attempt = nodes.entry(node.name.clone()).or_default();
            if attempt.in_flight {
                continue;
            }
            match attempt.next_attempt().filter(|at| *at > now) {
                Some(at) => next = Some(next.map_or(at, |earliest: Timestamp| earliest.min(at))),
                None if free > 0 => {
                    if let Some(adoption) = adoption_of(cx, node, now) {
                        (free, attempt.in_flight, attempt.done) = (free - 1, true, None);
                        due.push((node.name.clone(), adoption));
                    }
                }
                None => {}
            }
        }
        self.adoption.nodes = nodes;
        for (node, adoption) in due {
            let command = Command::Adopt(Box::new(adoption));
            cx.outbox.queue_command(command, CommandPurpose::Adopt(node), now);
        }
        cx.outbox.wake_at(next, "adopt an instance");
    }

    /// Handles the result of the tagging. The next listing shows the instance and creates its
    /// claim.
    pub(super) fn on_adoption_result(
        &mut self,
        cx: &mut Context,
        node: &NodeName,
        result: &CommandResult,
        now: Timestamp,
    ) {
        let Some(attempt) = self.adoption.nodes.get_mut(node) else {
            return;
        };
        attempt.in_flight = false;
        if *result != CommandResult::Done {
            attempt.retry.record_failure(now, &mut cx.rng);
            if result.failure() == Some(FailureKind::Denied) {
                self.adoption.pause.record_failure(now, &mut cx.rng);
            }
            return;
        }
        self.adoption.pause = Backoff::default();
        (attempt.retry, attempt.done) = (Backoff::default(), Some(now));
        let known = cx.state.objects.nodes.get(node);
        let pool = known.and_then(Node::pool_name).unwrap_or_default();
        let node = node.clone();
        cx.outbox.push_report(Report::Adopted { node, pool });
    }

    /// Reports Karpenter nodes that are not adopted.
    fn report_unadopted(&mut self, cx: &mut Context) {
        let mut unadopted: BTreeMap<PoolName, usize> = BTreeMap::new();
        for pool in cx.state.poolless_nodes().filter_map(Node::pool_name) {
            *unadopted.entry(pool).or_default() += 1;
        }
        let before = std::mem::replace(&mut self.adoption.left, unadopted.clone());
        for (pool, nodes) in unadopted {
            if before.get(&pool) != Some(&nodes) {
                cx.outbox.push_report(Report::NotAdopted { pool, nodes });
            }
        }
    }
}

/// In observe mode, treats nodes of other owners in configured pools as claims.
pub(super) fn count_adoptable(cx: &mut Context, now: Timestamp) {
    let counts = !cx.is_managing() && cx.state.cluster.adopt;
    let adoptable = counts.then(|| cx.state.adoptable_nodes());
    let adoptable = adoptable.into_iter().flatten();
    let new = adoptable.filter(|node| is_kept(node)).filter_map(|node| {
        let adoption = adoption_of(cx, node, now)?;
        let instance = adoption.adopted_instance();
        let phase = match node.is_initialized() {
            true => ClaimPhase::Initialized,
            false => ClaimPhase::Registered,
        };
        let mut claim = NodeClaim::new(adoption.claim, phase, now);
        claim.instance = Some(instance);
        claim.node = Some(node.name.clone());
        claim.foreign = true;
        Some(claim)
    });
    let new: Vec<NodeClaim> = new.collect();
    let gone = cx.state.ledger.claims.iter().filter(|(_, claim)| {
        claim.foreign && !(counts && cx.state.node_of(claim).is_some_and(is_kept))
    });
    let gone: Vec<ClaimId> = gone.map(|(id, _)| id.clone()).collect();
    for id in gone {
        claims::forget_claim(cx, &id);
    }
    for claim in new {
        cx.state.ledger.insert(claim);
    }
}

/// Returns whether a Karpenter pod runs, regardless of the location of its Lease. The Helm chart of
/// Karpenter sets the label.
fn runs_karpenter(cx: &Context) -> bool {
    cx.state.objects.pods.values().any(|pod| {
        let name = pod.labels.get("app.kubernetes.io/name").map(String::as_str);
        name == Some("karpenter") && pod.phase == PodPhase::Running
    })
}

/// Returns the adoption of a node's instance. `None` if the node lacks the required
/// information.
fn adoption_of(cx: &Context, node: &Node, now: Timestamp) -> Option<Adoption> {
    let pool = cx.state.cluster.pool(node.pool_name()?.as_str())?;
    let instance = node.instance_id()?;
    let offering = OfferingKey::from_labels(&node.labels)?;
    let created = node.created.unwrap_or(now);
    // Each attempt has the same client token, which no launch uses.
    let cluster = &cx.state.cluster;
    let mut claim = record_in(cluster, pool, instance, created, ADOPTED, ADOPTED);
    claim.origin = cx.state.claim_origin();
    Some(Adoption {
        tags: Launch::tags_of(cluster, &claim),
        claim,
        instance: instance.into(),
        offering,
    })
}

/// Returns the remaining changes of an adopted Node: Outrigger's labels and annotations, and
/// the removal of Karpenter's owner reference, which would delete the Node.
pub(super) fn takeover_patch(cx: &Context, claim: &NodeClaim, node: &Node) -> Option<NodePatch> {
    if claim.record.reason != ADOPTED {
        return None;
    }
    if node.node_claim.is_some() {
        return Some(NodePatch { disowned: node.node_claim.clone(), ..NodePatch::for_node(node) });
    }
    let id = claim.record.id.as_str();
    if node.annotations.get(CLAIM).map(String::as_str) == Some(id) {
        return None;
    }
    let mut patch = in_place_update::node_patch_for(cx, claim, node)?;
    patch.annotations.push((CLAIM.to_owned(), Some(id.to_owned())));
    Some(patch)
}

/// Returns whether a node has joined the cluster and is not being disrupted.
fn is_kept(node: &Node) -> bool {
    node.is_registered() && !node.is_leaving()
}
