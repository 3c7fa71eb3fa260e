//! Limits the terminations without a drain, which happen if an instance has no Node or its kubelet
//! does not respond. One mistake elsewhere, such as the deletion of all Nodes, must not terminate
//! all instances.
//!
//! The reasons are in docs/decisions/036-cluster-identity.md.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::report::Report;
use crate::model::id::ClaimId;
use crate::model::node::Node;
use crate::model::pool::BudgetNodes;
use crate::model::template_hash::accept_id;
use crate::state::cluster_identity::{HeldEnds, Mismatch};
use crate::state::node_claims::{LISTING_APART, NodeClaim};

/// A termination without a drain counts for this long.
const COUNTED: SignedDuration = SignedDuration::from_mins(10);

/// Number of remembered approval IDs with their claims. The set may have changed by the time the
/// user enters an ID.
const OFFERS: usize = 8;

/// The state of this safeguard.
#[derive(Clone, Debug, Default)]
pub(super) struct Undrained {
    /// Times of recent terminations without a drain.
    ended: VecDeque<Timestamp>,
    /// Claims that had a Node or should have one, and since when it is missing.
    missing: BTreeMap<ClaimId, Timestamp>,
    /// Claims of these that were within the limit at the last comparison.
    tolerated: BTreeSet<ClaimId>,
    /// Claims whose Node this process has seen ready or with user pods.
    used: BTreeSet<ClaimId>,
    /// Claims that were older than the registration timeout when this process first saw the
    /// cluster.
    old: BTreeSet<ClaimId>,
    /// Claims whose termination was blocked in the current pass.
    refused: BTreeSet<ClaimId>,
    /// Claims of version 0.1 that were blocked in this pass because none of them has a ready Node.
    unmarked: BTreeSet<ClaimId>,
    /// Claims that the safeguard blocks, as last reported.
    braked: BTreeSet<ClaimId>,
    /// All claims that wait for approval, as last reported.
    held: Option<HeldEnds>,
    /// The approvals that a user can give.
    offers: VecDeque<HeldEnds>,
    /// Claims that may be terminated: a user has approved it, and no Node has registered since.
    accepted: BTreeSet<ClaimId>,
}

impl Engine {
    /// Records the claims whose Node is ready or has user pods.
    fn record_used_claims(&mut self) {
        let claims = &self.state.ledger.claims;
        self.undrained.used.retain(|id| claims.contains_key(id));
        let used = claims.iter().filter(|(id, claim)| {
            let node = self.state.node_of(claim);
            !self.undrained.used.contains(*id)
                && node.is_some_and(|node| node.ready || self.has_pods(&node.name))
        });
        let used: Vec<ClaimId> = used.map(|(id, _)| id.clone()).collect();
        self.undrained.used.extend(used);
    }

    /// Records the claims that have no Node although they had one or are old enough to have one.
    pub(super) fn count_missing_nodes(&mut self, now: Timestamp) {
        self.record_used_claims();
        let (state, known) = (&self.state, &self.undrained);
        let old: Option<BTreeSet<ClaimId>> = (!self.looking.ready).then(|| {
            let old = state.running_claims().filter(|claim| {
                let age = now.duration_since(claim.record.created);
                age >= self.pool_of(claim).registration_timeout
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
            if claim.leaving.is_some()
                || !had_node
                || has_node
                || self.is_termination_approved(claim)
            {
                continue;
            }
            let since = known.missing.get(id).copied();
            missing.insert(id.clone(), since.unwrap_or(now));
        }
        let accepted = known.accepted.iter().filter(|id| {
            let claim = state.ledger.claims.get(*id);
            claim.is_some_and(|claim| !self.has_ready_node(claim))
        });
        let accepted = accepted.cloned().collect();
        let claims = &self.state.ledger.claims;
        self.undrained.accepted = accepted;
        self.undrained.missing = missing;
        match old {
            Some(old) => self.undrained.old = old,
            None => self.undrained.old.retain(|id| claims.contains_key(id)),
        }
        self.release_accepted_ends();
    }

    /// Releases the claims of approved IDs. Each occasion has a new ID.
    fn release_accepted_ends(&mut self) {
        let ids = &self.state.notes.accepted;
        let (taken, others): (VecDeque<HeldEnds>, VecDeque<HeldEnds>) =
            std::mem::take(&mut self.undrained.offers)
                .into_iter()
                .partition(|offer| ids.contains(&offer.id));
        self.undrained.offers = others;
        for claim in taken.into_iter().flat_map(|offer| offer.claims) {
            self.undrained.missing.remove(&claim);
            self.undrained.accepted.insert(claim);
        }
    }

    /// Creates an approval request for these claims on this occasion.
    fn offer_approval(&mut self, claims: BTreeSet<ClaimId>, since: Timestamp) -> HeldEnds {
        let since = since.as_nanosecond().to_string();
        let parts = claims.iter().map(ClaimId::as_str).chain([since.as_str()]);
        let offer = HeldEnds {
            id: accept_id(&self.state.cluster.name, "ends", parts),
            total: self.state.running_claims().count(),
            claims,
        };
        let offers = &mut self.undrained.offers;
        if !offers.iter().any(|known| known.id == offer.id) {
            offers.push_back(offer.clone());
            offers.drain(..offers.len().saturating_sub(OFFERS));
        }
        offer
    }

    /// Returns `no_nodes` if more than `undrained_max` instances run without their Nodes. A listing
    /// requested after the loss has to show them: if the provider terminates instances, their Nodes
    /// may be deleted before a listing shows it.
    pub(super) fn missing_nodes(&mut self) -> Option<Mismatch> {
        let asked = self.looking.listing_answered?;
        let sure = self.undrained.missing.iter().filter(|(_, since)| {
            !self.looking.ready || asked.duration_since(**since) >= LISTING_APART
        });
        let claims: BTreeSet<ClaimId> = sure.clone().map(|(id, _)| id.clone()).collect();
        let since = sure.map(|(_, since)| *since).min();
        let total = self.state.running_claims().count();
        let Some(since) = since.filter(|_| self.are_too_many(&claims, total)) else {
            self.undrained.tolerated = claims;
            return None;
        };
        let offer = self.offer_approval(claims, since);
        Some(Mismatch::NoNodes { instances: offer.claims.len(), total, id: offer.id })
    }

    /// Returns whether too many claims have no Node, so that the engine has to stop: more than
    /// [`Self::undrained_max`] of `total`. A shrinking cluster is not stopped:
    /// claims within the limit at the last comparison remain within it until a further claim lacks
    /// its Node. If the engine has already stopped, only the number counts.
    fn are_too_many(&self, claims: &BTreeSet<ClaimId>, total: usize) -> bool {
        let stopped = matches!(self.looking.mismatch, Some(Mismatch::NoNodes { .. }));
        let more = stopped || !claims.is_subset(&self.undrained.tolerated);
        more && claims.len() > self.undrained_max(total)
    }

    /// Returns whether a listing should soon show if instances without Nodes run.
    pub(super) fn awaits_missing_nodes(&self) -> bool {
        let total = self.state.running_claims().count();
        let claims = self.undrained.missing.keys().cloned().collect();
        self.are_too_many(&claims, total)
    }

    /// Returns how many of `total` instances may be terminated without a drain within [`COUNTED`].
    /// A percentage is rounded down.
    fn undrained_max(&self, total: usize) -> usize {
        let limit = match self.state.cluster.safeguards.undrained_max {
            BudgetNodes::Nodes(count) => count as usize,
            BudgetNodes::Percent(percent) => total * usize::from(percent) / 100,
        };
        limit.max(1)
    }

    /// Returns whether the instance of a claim may be terminated without a drain now. Recent
    /// terminations count, and so do claims without a Node, which may be next.
    pub(super) fn may_end_undrained(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let Some(claim) = self.claim(id) else {
            return false;
        };
        let granted = self.works.get(id).is_some_and(|progress| progress.undrained);
        if claim.live_instance().is_none()
            || granted
            || self.was_never_used(claim)
            || self.is_termination_approved(claim)
        {
            return true;
        }
        let unmarked = claim.record.origin.cluster_uid.is_none();
        if unmarked && !self.state.knows_unmarked_claims() {
            self.undrained.unmarked.insert(id.clone());
            return false;
        }
        if !self.is_within_safeguard(id, now) {
            self.undrained.refused.insert(id.clone());
            return false;
        }
        // EC2 terminates the instance anyway, so this is no sign of a mistake.
        if !self.is_taken_back(id, now) {
            self.undrained.ended.push_back(now);
        }
        // It counts as terminated from here on.
        self.undrained.missing.remove(id);
        self.progress_of(id).undrained = true;
        true
    }

    /// Returns whether one more instance is within the limit. Blocked terminations resume only
    /// after an approval or when the Node returns. Otherwise one mistake could terminate a whole
    /// cluster step by step.
    pub(super) fn is_within_safeguard(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let ended = &mut self.undrained.ended;
        while ended.front().is_some_and(|at| now.duration_since(*at) >= COUNTED) {
            ended.pop_front();
        }
        let ended = ended.len();
        let total = self.state.running_claims().count();
        let missing = &self.undrained.missing;
        let others = missing.len() - usize::from(missing.contains_key(id));
        let holds = !self.undrained.braked.is_empty() || !self.undrained.refused.is_empty();
        !holds && ended + others < self.undrained_max(total)
    }

    /// Returns whether no user pod can run on the instance of a claim. This process launched the
    /// claim and has watched the cluster since then without a long gap. The Node never registered,
    /// or it was never ready and had only daemon pods. The safeguard does not count such an
    /// instance.
    fn was_never_used(&self, claim: &NodeClaim) -> bool {
        let created = claim.record.created;
        let watched = self.state.started.is_some_and(|at| created >= at);
        let node = self.state.node_of(claim);
        // A Node created for early binding whose kubelet never registered does not count.
        let none_came = claim.node.is_none() || node.is_some_and(Node::is_awaited);
        let idle = node.is_some_and(|node| !node.ready && !self.has_pods(&node.name));
        let unused = idle && !self.undrained.used.contains(&claim.record.id);
        let whole =
            self.looking.gap.is_none_or(|at| created >= at) && self.looking.frozen.is_none();
        watched && whole && (none_came || unused)
    }

    /// Returns whether a user has approved this termination, or this API server for instances with
    /// a different cluster UID. A ready Node proves that the instance belongs to this cluster.
    pub(super) fn is_termination_approved(&self, claim: &NodeClaim) -> bool {
        let approved = self.undrained.accepted.contains(&claim.record.id);
        let other = self.state.is_of_accepted_cluster(claim);
        (approved || other) && !self.has_ready_node(claim)
    }

    /// Returns whether a claim has a ready Node.
    fn has_ready_node(&self, claim: &NodeClaim) -> bool {
        self.state.node_of(claim).is_some_and(|node| node.ready)
    }

    /// Reports the blocked instances when the set first appears and when it grows.
    pub(super) fn report_held_ends(&mut self, now: Timestamp) {
        let mut refused = std::mem::take(&mut self.undrained.refused);
        let unmarked = std::mem::take(&mut self.undrained.unmarked);
        // A pass may not try to terminate all blocked instances. They are blocked until their Nodes
        // are ready or they are terminated.
        refused.extend(
            self.undrained
                .braked
                .iter()
                .filter(|id| {
                    self.claim(id).is_some_and(|claim| {
                        claim.live_instance().is_some()
                            && !self.has_ready_node(claim)
                            && !self.is_termination_approved(claim)
                    })
                })
                .cloned(),
        );
        self.undrained.braked.clone_from(&refused);
        refused.extend(unmarked);
        if refused.is_empty() {
            if self.undrained.held.take().is_some() {
                self.push_report(Report::EndsReleased);
            }
            return;
        }
        let held = self.undrained.held.as_ref();
        if held.is_some_and(|held| held.claims.is_superset(&refused)) {
            return;
        }
        let held = self.offer_approval(refused, now);
        self.undrained.held = Some(held.clone());
        self.push_report(Report::EndsHeld(held));
    }

    /// Returns the instances whose termination waits for approval.
    pub fn held_ends(&self) -> Option<&HeldEnds> {
        self.undrained.held.as_ref()
    }
}
