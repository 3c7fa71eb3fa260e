//! Limits the terminations without a drain, which happen if an instance has no Node or its kubelet
//! does not respond. One mistake of a user or another program, such as the deletion of all Nodes,
//! must not terminate all instances.
//!
//! The reasons are in docs/decisions/036-cluster-identity.md.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::claims;
use crate::engine::context::Context;
use crate::engine::controllers::Interruptions;
use crate::engine::report::Report;
use crate::engine::sync_state::SyncPhase;
use crate::model::id::ClaimId;
use crate::model::node::Node;
use crate::model::pool::BudgetNodes;
use crate::model::template_hash::accept_id;
use crate::state::cluster_identity::{HeldEnds, Mismatch};
use crate::state::node_claims::{LISTING_APART, NodeClaim};

/// A termination without a drain counts against the limit for this long.
const COUNTED: SignedDuration = SignedDuration::from_mins(10);

/// Number of remembered approval IDs with their claims. The set of claims may have changed by the
/// time the user enters an ID.
const OFFERS: usize = 8;

impl Engine {
    /// Returns the instances whose termination waits for approval.
    pub fn held_terminations(&self) -> Option<&HeldEnds> {
        self.cx.safeguards.undrained.held.as_ref()
    }
}

/// Records the claims whose Node is ready or has user pods.
fn record_used_claims(cx: &mut Context) {
    let claims = &cx.state.ledger.claims;
    cx.safeguards.undrained.used.retain(|id| claims.contains_key(id));
    let used = claims.iter().filter(|(id, claim)| {
        let node = cx.state.node_of(claim);
        !cx.safeguards.undrained.used.contains(*id)
            && node.is_some_and(|node| node.ready || claims::has_pods(cx, &node.name))
    });
    let used: Vec<ClaimId> = used.map(|(id, _)| id.clone()).collect();
    cx.safeguards.undrained.used.extend(used);
}

/// Records the claims that have no Node although they had one or are old enough to have one.
pub(super) fn count_missing_nodes(cx: &mut Context, now: Timestamp) {
    record_used_claims(cx);
    let (state, known) = (&cx.state, &cx.safeguards.undrained);
    let old: Option<BTreeSet<ClaimId>> = (cx.sync.phase == SyncPhase::Starting).then(|| {
        let old = state.running_claims().filter(|claim| {
            let age = now.duration_since(claim.record.created);
            age >= cx.pool_of(claim).registration_timeout
        });
        old.map(|claim| claim.record.id.clone()).collect()
    });
    let nodes = state.instances_of_nodes(false);
    let mut missing: BTreeMap<ClaimId, Timestamp> = BTreeMap::new();
    for claim in state.running_claims() {
        let id = &claim.record.id;
        let had_node = claim.node.is_some() || old.as_ref().unwrap_or(&known.old).contains(id);
        let instance = claim.instance.as_ref();
        let has_node = instance.is_some_and(|instance| nodes.contains(instance.id.as_str()));
        if claim.leaving.is_some() || !had_node || has_node || is_termination_approved(cx, claim) {
            continue;
        }
        let since = known.missing.get(id).copied();
        missing.insert(id.clone(), since.unwrap_or(now));
    }
    let accepted = known.accepted.iter().filter(|id| {
        let claim = state.ledger.claims.get(*id);
        claim.is_some_and(|claim| !has_ready_node(cx, claim))
    });
    let accepted = accepted.cloned().collect();
    let claims = &cx.state.ledger.claims;
    cx.safeguards.undrained.accepted = accepted;
    cx.safeguards.undrained.missing = missing;
    match old {
        Some(old) => cx.safeguards.undrained.old = old,
        None => cx.safeguards.undrained.old.retain(|id| claims.contains_key(id)),
    }
    release_approved_terminations(cx);
}

/// Releases the claims of approved IDs. An approved ID is not valid for later occasions.
fn release_approved_terminations(cx: &mut Context) {
    let ids = &cx.state.notes.accepted;
    let (taken, others): (VecDeque<HeldEnds>, VecDeque<HeldEnds>) =
        std::mem::take(&mut cx.safeguards.undrained.offers)
            .into_iter()
            .partition(|offer| ids.contains(&offer.id));
    cx.safeguards.undrained.offers = others;
    for claim in taken.into_iter().flat_map(|offer| offer.claims) {
        cx.safeguards.undrained.missing.remove(&claim);
        cx.safeguards.undrained.accepted.insert(claim);
    }
}

/// Creates an approval request for these claims. `since` is part of the ID of the request.
fn offer_approval(cx: &mut Context, claims: BTreeSet<ClaimId>, since: Timestamp) -> HeldEnds {
    let since = since.as_nanosecond().to_string();
    let parts = claims.iter().map(ClaimId::as_str).chain([since.as_str()]);
    let offer = HeldEnds {
        id: accept_id(&cx.state.cluster.name, "ends", parts),
        total: cx.state.running_claims().count(),
        claims,
    };
    let offers = &mut cx.safeguards.undrained.offers;
    if !offers.iter().any(|known| known.id == offer.id) {
        offers.push_back(offer.clone());
        offers.drain(..offers.len().saturating_sub(OFFERS));
    }
    offer
}

/// Returns `no_nodes` if more than `undrained_max` instances run without their Nodes. A listing
/// requested after the loss of the Nodes has to show the instances: if the provider terminates
/// instances, their Nodes may be deleted before a listing shows it.
pub(super) fn missing_nodes_mismatch(cx: &mut Context) -> Option<Mismatch> {
    let asked = cx.sync.listing_answered?;
    let sure = cx.safeguards.undrained.missing.iter().filter(|(_, since)| {
        cx.sync.phase == SyncPhase::Starting || asked.duration_since(**since) >= LISTING_APART
    });
    let claims: BTreeSet<ClaimId> = sure.clone().map(|(id, _)| id.clone()).collect();
    let since = sure.map(|(_, since)| *since).min();
    let total = cx.state.running_claims().count();
    let Some(since) = since.filter(|_| exceeds_undrained_max(cx, &claims, total)) else {
        cx.safeguards.undrained.tolerated = claims;
        return None;
    };
    let offer = offer_approval(cx, claims, since);
    Some(Mismatch::NoNodes { instances: offer.claims.len(), total, id: offer.id })
}

/// Returns whether too many claims have no Node, so that the engine has to stop: more than
/// [`undrained_max`] of `total`. A shrinking cluster is not stopped: claims within the limit at the
/// last comparison remain within it until a further claim lacks its Node. If the engine has already
/// stopped, only the number of claims without a Node is compared.
fn exceeds_undrained_max(cx: &Context, claims: &BTreeSet<ClaimId>, total: usize) -> bool {
    let stopped = matches!(cx.sync.mismatch, Some(Mismatch::NoNodes { .. }));
    let more = stopped || !claims.is_subset(&cx.safeguards.undrained.tolerated);
    more && claims.len() > undrained_max(cx, total)
}

/// Returns whether too many claims have no Node, so that instances are listed sooner.
pub(super) fn awaits_missing_nodes(cx: &Context) -> bool {
    let total = cx.state.running_claims().count();
    let claims = cx.safeguards.undrained.missing.keys().cloned().collect();
    exceeds_undrained_max(cx, &claims, total)
}

/// Returns how many of `total` instances may be terminated without a drain within [`COUNTED`].
/// A percentage is rounded down.
fn undrained_max(cx: &Context, total: usize) -> usize {
    let limit = match cx.state.cluster.safeguards.undrained_max {
        BudgetNodes::Nodes(count) => count as usize,
        BudgetNodes::Percent(percent) => total * usize::from(percent) / 100,
    };
    limit.max(1)
}

/// Returns whether the instance of a claim may be terminated without a drain now. Recent
/// terminations count against the limit, and so do claims without a Node, which may be next.
pub(super) fn may_terminate_undrained(
    cx: &mut Context,
    interruptions: &Interruptions,
    id: &ClaimId,
    now: Timestamp,
) -> bool {
    let Some(claim) = cx.claim(id) else {
        return false;
    };
    let granted = cx.progress.get(id).is_some_and(|progress| progress.undrained);
    if claim.live_instance().is_none()
        || granted
        || was_never_used(cx, claim)
        || is_termination_approved(cx, claim)
    {
        return true;
    }
    let unmarked = claim.record.origin.cluster_uid.is_none();
    if unmarked && !cx.state.knows_unmarked_claims() {
        cx.safeguards.undrained.unmarked.insert(id.clone());
        return false;
    }
    if !is_within_safeguard(cx, id, now) {
        cx.safeguards.undrained.refused.insert(id.clone());
        return false;
    }
    // EC2 terminates the instance anyway, so this is no sign of a mistake.
    if !interruptions.is_reclaimed(cx, id, now) {
        cx.safeguards.undrained.ended.push_back(now);
    }
    // From here on, the claim counts as terminated.
    cx.safeguards.undrained.missing.remove(id);
    cx.progress_of(id).undrained = true;
    true
}

/// Returns whether one more instance is within the limit. Blocked terminations resume only
/// after an approval or when the Node returns. Otherwise one mistake could terminate a whole
/// cluster step by step.
pub(super) fn is_within_safeguard(cx: &mut Context, id: &ClaimId, now: Timestamp) -> bool {
    let ended = &mut cx.safeguards.undrained.ended;
    while ended.front().is_some_and(|at| now.duration_since(*at) >= COUNTED) {
        ended.pop_front();
    }
    let ended = ended.len();
    let total = cx.state.running_claims().count();
    let missing = &cx.safeguards.undrained.missing;
    let others = missing.len() - usize::from(missing.contains_key(id));
    let holds =
        !cx.safeguards.undrained.braked.is_empty() || !cx.safeguards.undrained.refused.is_empty();
    !holds && ended + others < undrained_max(cx, total)
}

/// Returns whether no user pod can run on the instance of a claim. This process launched the
/// claim and has watched the cluster since then without a long gap. The Node never registered,
/// or it was never ready and had only daemon pods. The safeguard does not count such an
/// instance.
fn was_never_used(cx: &Context, claim: &NodeClaim) -> bool {
    let created = claim.record.created;
    let watched = cx.state.started.is_some_and(|at| created >= at);
    let node = cx.state.node_of(claim);
    // A Node created for early binding whose kubelet never registered does not count as registered.
    let none_came = claim.node.is_none() || node.is_some_and(Node::is_awaited);
    let idle = node.is_some_and(|node| !node.ready && !claims::has_pods(cx, &node.name));
    let unused = idle && !cx.safeguards.undrained.used.contains(&claim.record.id);
    let whole = cx.sync.gap.is_none_or(|at| created >= at)
        && !matches!(cx.sync.phase, SyncPhase::OutOfSync { .. });
    watched && whole && (none_came || unused)
}

/// Returns whether a user has approved this termination, or this API server for instances with
/// a different cluster UID. A ready Node proves that the instance belongs to this cluster.
pub(super) fn is_termination_approved(cx: &Context, claim: &NodeClaim) -> bool {
    let approved = cx.safeguards.undrained.accepted.contains(&claim.record.id);
    let other = cx.state.is_of_accepted_cluster(claim);
    (approved || other) && !has_ready_node(cx, claim)
}

/// Returns whether a claim has a ready Node.
fn has_ready_node(cx: &Context, claim: &NodeClaim) -> bool {
    cx.state.node_of(claim).is_some_and(|node| node.ready)
}

/// Reports the blocked instances when the set first appears and when it grows.
pub(super) fn report_held_terminations(cx: &mut Context, now: Timestamp) {
    let mut refused = std::mem::take(&mut cx.safeguards.undrained.refused);
    let unmarked = std::mem::take(&mut cx.safeguards.undrained.unmarked);
    // A pass may not try to terminate all blocked instances. The instances remain blocked until
    // their Nodes are ready or the instances are terminated.
    refused.extend(
        cx.safeguards
            .undrained
            .braked
            .iter()
            .filter(|id| {
                cx.claim(id).is_some_and(|claim| {
                    claim.live_instance().is_some()
                        && !has_ready_node(cx, claim)
                        && !is_termination_approved(cx, claim)
                })
            })
            .cloned(),
    );
    cx.safeguards.undrained.braked.clone_from(&refused);
    refused.extend(unmarked);
    if refused.is_empty() {
        if cx.safeguards.undrained.held.take().is_some() {
            cx.outbox.push_report(Report::EndsReleased);
        }
        return;
    }
    let held = cx.safeguards.undrained.held.as_ref();
    if held.is_some_and(|held| held.claims.is_superset(&refused)) {
        return;
    }
    let held = offer_approval(cx, refused, now);
    cx.safeguards.undrained.held = Some(held.clone());
    cx.outbox.push_report(Report::EndsHeld(held));
}
