//! A brake on instances that end without a drain, because they have no Node or nothing answers on
//! it. One mistake elsewhere, as the deletion of all Nodes, must not end them all.
//! It must not know why an instance ends.
//!
//! Why so: docs/decisions/036-which-cluster-this-is.md.

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

/// Ends without a drain count for this long.
const COUNTED: SignedDuration = SignedDuration::from_mins(10);

/// Ids that a person may accept are remembered, with the claims of each: the set may be another by
/// the time the person has typed the id.
const OFFERS: usize = 8;

/// What is remembered of ends without a drain.
#[derive(Clone, Debug, Default)]
pub(super) struct Undrained {
    /// When instances were last allowed to end without one.
    ended: VecDeque<Timestamp>,
    /// Claims that had a Node, or should have one, and since when none is there.
    missing: BTreeMap<ClaimId, Timestamp>,
    /// Of these, the ones that were within the limit when the cluster was last compared.
    tolerated: BTreeSet<ClaimId>,
    /// Claims whose Node was once ready or had pods of users, as this process saw it.
    used: BTreeSet<ClaimId>,
    /// Claims that were older than their time to register when this process first saw the cluster.
    old: BTreeSet<ClaimId>,
    /// Claims that the brake refused to end in the pass that is under way.
    refused: BTreeSet<ClaimId>,
    /// Claims of 0.1 that were refused in this pass, since no ready Node is one of them.
    unmarked: BTreeSet<ClaimId>,
    /// Claims that the brake holds, as last reported.
    braked: BTreeSet<ClaimId>,
    /// All claims that are held, as last reported.
    held: Option<HeldEnds>,
    /// What a person may accept.
    offers: VecDeque<HeldEnds>,
    /// Claims that may end, since a person has accepted it and no Node has come since.
    accepted: BTreeSet<ClaimId>,
}

impl Engine {
    /// Notes the claims whose Node is ready, or has pods of users.
    fn note_used(&mut self) {
        let claims = &self.state.ledger.claims;
        self.undrained.used.retain(|id| claims.contains_key(id));
        let is_used = |claim: &&NodeClaim| {
            let node = self.state.node_of(claim);
            node.is_some_and(|own| own.ready || self.has_pods(&own.name))
        };
        let known = &self.undrained.used;
        let claims = claims
            .values()
            .filter(|own| !known.contains(&own.record.id));
        let used = claims.filter(is_used).map(|own| own.record.id.clone());
        let used: Vec<ClaimId> = used.collect();
        self.undrained.used.extend(used);
    }

    /// Notes which claims have no Node though they had one, or are so old that they should.
    pub(super) fn count_missing_nodes(&mut self, now: Timestamp) {
        self.note_used();
        let (state, known) = (&self.state, &self.undrained);
        let overdue = |claim: &NodeClaim| {
            let age = now.duration_since(claim.record.created);
            age >= self.pool_of(claim).registration_timeout
        };
        let old: Option<BTreeSet<ClaimId>> = (!self.looking.ready).then(|| {
            let old = state.running_claims().filter(|own| overdue(own));
            old.map(|own| own.record.id.clone()).collect()
        });
        let nodes = state.instances_of_nodes(false);
        let has_node = |claim: &NodeClaim| {
            let instance = claim.instance.as_ref().map(|own| own.id.as_str());
            instance.is_some_and(|own| nodes.contains(own))
        };
        let is_old = |id: &ClaimId| old.as_ref().unwrap_or(&known.old).contains(id);
        let mut missing: BTreeMap<ClaimId, Timestamp> = BTreeMap::new();
        for claim in state.running_claims() {
            let id = &claim.record.id;
            let had_node = claim.node.is_some() || is_old(id);
            if claim.leaving.is_some() || !had_node || has_node(claim) || self.is_accepted(claim) {
                continue;
            }
            let since = known.missing.get(id).copied();
            missing.insert(id.clone(), since.unwrap_or(now));
        }
        let accepted = known.accepted.iter().filter(|id| {
            let claim = state.ledger.claims.get(*id);
            claim.is_some_and(|own| !self.is_well(own))
        });
        let accepted = accepted.cloned().collect();
        let claims = &self.state.ledger.claims;
        self.undrained.accepted = accepted;
        self.undrained.missing = missing;
        match old {
            Some(old) => self.undrained.old = old,
            None => self.undrained.old.retain(|id| claims.contains_key(id)),
        }
        self.heed_accepted_ends();
    }

    /// Lets the claims end whose id a person has accepted. The id of another occasion differs.
    fn heed_accepted_ends(&mut self) {
        let ids = &self.state.notes.accepted;
        let (taken, left): (VecDeque<HeldEnds>, VecDeque<HeldEnds>) =
            std::mem::take(&mut self.undrained.offers)
                .into_iter()
                .partition(|own| ids.contains(&own.id));
        self.undrained.offers = left;
        for claim in taken.into_iter().flat_map(|own| own.claims) {
            self.undrained.missing.remove(&claim);
            self.undrained.accepted.insert(claim);
        }
    }

    /// What a person is offered to accept: these claims, on this occasion.
    fn offer(&mut self, claims: BTreeSet<ClaimId>, since: Timestamp) -> HeldEnds {
        let since = since.as_nanosecond().to_string();
        let parts = claims.iter().map(ClaimId::as_str).chain([since.as_str()]);
        let offer = HeldEnds {
            id: accept_id(&self.state.cluster.name, "ends", parts),
            total: self.state.running_claims().count(),
            claims,
        };
        let offers = &mut self.undrained.offers;
        if !offers.iter().any(|own| own.id == offer.id) {
            offers.push_back(offer.clone());
            let extra = offers.len().saturating_sub(OFFERS);
            offers.drain(..extra);
        }
        offer
    }

    /// Returns `no_nodes` if more instances than `undrained_max` run without their Nodes. A listing
    /// that was asked for after the loss has to show them: where the provider ends instances, their
    /// Nodes may go before a listing tells.
    pub(super) fn missing_nodes(&mut self) -> Option<Mismatch> {
        let asked = self.looking.listing_answered?;
        let is_sure = |since: &Timestamp| {
            !self.looking.ready || asked.duration_since(*since) >= LISTING_APART
        };
        let missing = self.undrained.missing.iter();
        let sure = missing.filter(|(_, since)| is_sure(since));
        let claims: BTreeSet<ClaimId> = sure.clone().map(|(id, _)| id.clone()).collect();
        let since = sure.map(|(_, since)| *since).min();
        let total = self.state.running_claims().count();
        let Some(since) = since.filter(|_| self.are_too_many(&claims, total)) else {
            self.undrained.tolerated = claims;
            return None;
        };
        let offer = self.offer(claims, since);
        Some(Mismatch::NoNodes {
            instances: offer.claims.len(),
            total,
            id: offer.id,
        })
    }

    /// Whether so many claims have no Node that the engine has to stop this cluster: more than
    /// [`undrained_max`](Self::undrained_max) of `total`. The engine does not stop a cluster that
    /// shrinks: claims that were few enough at the last comparison stay few enough, until another
    /// claim lacks its Node. Where it has stopped the cluster already, only the number counts.
    fn are_too_many(&self, claims: &BTreeSet<ClaimId>, total: usize) -> bool {
        let stopped = matches!(self.looking.mismatch, Some(Mismatch::NoNodes { .. }));
        let more = stopped || !claims.is_subset(&self.undrained.tolerated);
        more && claims.len() > self.undrained_max(total)
    }

    /// Whether a listing is to tell soon if instances run whose Nodes are gone.
    pub(super) fn awaits_missing_nodes(&self) -> bool {
        let total = self.state.running_claims().count();
        let claims = self.undrained.missing.keys().cloned().collect();
        self.are_too_many(&claims, total)
    }

    /// Returns how many of `total` instances may end without a drain within [`COUNTED`]. It rounds
    /// a percentage down.
    fn undrained_max(&self, total: usize) -> usize {
        let most = match self.state.cluster.safeguards.undrained_max {
            BudgetNodes::Nodes(count) => count as usize,
            BudgetNodes::Percent(percent) => total * usize::from(percent) / 100,
        };
        most.max(1)
    }

    /// Whether the instance of a claim may end without a drain now. The ends of the last minutes
    /// count, together with the claims that have no Node and may be next.
    pub(super) fn may_end_undrained(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return false;
        };
        let granted = self.works.get(id).is_some_and(|own| own.undrained);
        if !is_live(claim) || granted || self.never_came(claim) || self.is_accepted(claim) {
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
        // EC2 ends the instance anyway, and this is no sign of a mistake.
        if !self.is_taken_back(id, now) {
            self.undrained.ended.push_back(now);
        }
        // It counts as one that has ended from here on.
        self.undrained.missing.remove(id);
        self.works.entry(id.clone()).or_default().undrained = true;
        true
    }

    /// Whether so few instances have lately ended without a drain, or lack their Nodes, that one
    /// more may end so. What is held goes on only when a person accepts it, or its Node comes back:
    /// one mistake must not end all of a cluster bit by bit.
    pub(super) fn is_within_safeguard(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let ended = &mut self.undrained.ended;
        while ended
            .front()
            .is_some_and(|at| now.duration_since(*at) >= COUNTED)
        {
            ended.pop_front();
        }
        let ended = ended.len();
        let total = self.state.running_claims().count();
        let missing = &self.undrained.missing;
        let others = missing.len() - usize::from(missing.contains_key(id));
        let holds = !self.undrained.braked.is_empty() || !self.undrained.refused.is_empty();
        !holds && ended + others < self.undrained_max(total)
    }

    /// Whether this process has launched a claim, has watched the cluster since then without a long
    /// gap, and its Node never came, or never was ready and never had pods but those of daemons. No
    /// pod of a user runs on such an instance, so the brake does not count it.
    fn never_came(&self, claim: &NodeClaim) -> bool {
        let since = |at: Option<Timestamp>| at.is_none_or(|at| claim.record.created >= at);
        let watched = self.state.started.is_some() && since(self.state.started);
        // A Node that we have made for a kubelet that never came is none.
        let awaited = self.state.node_of(claim).is_some_and(Node::is_awaited);
        let none_came = claim.node.is_none() || awaited;
        let node = self.state.node_of(claim);
        let idle = node.is_some_and(|own| !own.ready && !self.has_pods(&own.name));
        let unused = idle && !self.undrained.used.contains(&claim.record.id);
        let whole = since(self.looking.gap) && self.looking.frozen.is_none();
        watched && whole && (none_came || unused)
    }

    /// Whether a person has accepted this end, or has accepted this API server for instances of
    /// another UID. Where its Node is ready here, it is of this cluster all the same.
    pub(super) fn is_accepted(&self, claim: &NodeClaim) -> bool {
        let own = self.undrained.accepted.contains(&claim.record.id);
        let other = self.state.is_of_accepted_cluster(claim);
        (own || other) && !self.is_well(claim)
    }

    /// Whether a claim has a Node that is ready.
    fn is_well(&self, claim: &NodeClaim) -> bool {
        self.state.node_of(claim).is_some_and(|node| node.ready)
    }

    /// Reports the held instances when the set first appears and when it grows.
    pub(super) fn tell_held_ends(&mut self, now: Timestamp) {
        let mut refused = std::mem::take(&mut self.undrained.refused);
        let unmarked = std::mem::take(&mut self.undrained.unmarked);
        // A pass may ask for none of those that are held: they are, until they are well or ended.
        let stays = |id: &&ClaimId| {
            let claim = self.state.ledger.claims.get(*id);
            claim.is_some_and(|own| is_live(own) && !self.is_well(own) && !self.is_accepted(own))
        };
        refused.extend(self.undrained.braked.iter().filter(stays).cloned());
        self.undrained.braked.clone_from(&refused);
        refused.extend(unmarked);
        if refused.is_empty() {
            if self.undrained.held.take().is_some() {
                self.report(Report::EndsReleased);
            }
            return;
        }
        let held = self.undrained.held.as_ref();
        if held.is_some_and(|own| own.claims.is_superset(&refused)) {
            return;
        }
        let held = self.offer(refused, now);
        self.undrained.held = Some(held.clone());
        self.report(Report::EndsHeld(held));
    }

    /// Instances that do not end before a person accepts it.
    pub fn held_ends(&self) -> Option<&HeldEnds> {
        self.undrained.held.as_ref()
    }
}

/// Whether the instance of a claim runs, as far as listings and answers say.
fn is_live(claim: &NodeClaim) -> bool {
    let instance = claim.instance.as_ref();
    instance.is_some_and(|own| own.state.is_live())
}
