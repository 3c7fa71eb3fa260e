//! A brake on instances that end without a drain: since they have no Node, or since nothing answers
//! on it. One mistake elsewhere, as the deletion of all Nodes, must not end them all.
//! It must not know why an instance ends.
//!
//! Why so: docs/decisions/036-which-cluster-this-is.md.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::report::Report;
use crate::model::hash::accept_id;
use crate::model::id::ClaimId;
use crate::model::pool::Allowance;
use crate::state::State;
use crate::state::identity::{HeldEnds, Mismatch};
use crate::state::ledger::{Claim, LISTING_APART};

/// Ends without a drain count for this long.
const COUNTED: SignedDuration = SignedDuration::from_mins(10);

/// What is remembered of ends without a drain.
#[derive(Clone, Debug, Default)]
pub(super) struct Undrained {
    /// When instances were last allowed to end without one.
    ended: VecDeque<Timestamp>,
    /// Claims that had a Node, or should have one, and since when none is there.
    missing: BTreeMap<ClaimId, Timestamp>,
    /// Claims that were old when this process first saw the cluster.
    old: BTreeSet<ClaimId>,
    /// Claims whose ends were refused in the pass that is under way.
    refused: BTreeSet<ClaimId>,
    /// What was said of that.
    held: Option<HeldEnds>,
    /// Claims that may end, since a person has accepted it.
    accepted: BTreeSet<ClaimId>,
}

impl Engine {
    /// Notes which claims have no Node though they had one, or are so old that they should have.
    pub(super) fn count_missing_nodes(&mut self, now: Timestamp) {
        let first = !self.looking.ready;
        let nodes = self.state.instances_of_nodes(false);
        let mut missing: BTreeMap<ClaimId, Timestamp> = BTreeMap::new();
        let mut old: BTreeSet<ClaimId> = BTreeSet::new();
        for claim in self.state.running_claims() {
            let id = &claim.record.id;
            let is_there = |own: &str| nodes.contains(own);
            let instance = claim.instance.as_ref().map(|own| own.id.as_str());
            let overdue = self.pool_of(claim).registration_timeout;
            let age = now.duration_since(claim.record.created);
            if first && age >= overdue || self.undrained.old.contains(id) {
                old.insert(id.clone());
            }
            let is_over = claim.leaving.is_some() || instance.is_some_and(is_there);
            if is_over || !(claim.node.is_some() || old.contains(id)) {
                continue;
            }
            let since = self.undrained.missing.get(id).copied();
            missing.insert(id.clone(), since.unwrap_or(now));
        }
        (self.undrained.missing, self.undrained.old) = (missing, old);
        self.heed_accepted_ends();
    }

    /// What a person has accepted may end.
    fn heed_accepted_ends(&mut self) {
        let accepted = &self.state.notes.accepted;
        let mut now_accepted: Vec<ClaimId> = Vec::new();
        if let Some(held) = &self.undrained.held
            && accepted.contains(&held.id)
        {
            now_accepted.extend(held.claims.iter().cloned());
        }
        if let Some(Mismatch::NoNodes { id, .. }) = &self.looking.mismatch
            && accepted.contains(id)
        {
            now_accepted.extend(self.undrained.missing.keys().cloned());
        }
        self.undrained.accepted.extend(now_accepted);
        let claims = &self.state.ledger.claims;
        self.undrained.accepted.retain(|id| claims.contains_key(id));
        let accepted = &self.undrained.accepted;
        self.undrained
            .missing
            .retain(|id, _| !accepted.contains(id));
    }

    /// Whether so many instances run without their Nodes that something else is wrong than one of
    /// them. A listing that is younger than the loss has to show them: of instances that the
    /// provider ends, the Nodes may go before a listing tells.
    pub(super) fn missing_nodes(&self) -> Option<Mismatch> {
        let listed = self.state.ledger.listed_at()?;
        let is_sure = |since: &Timestamp| {
            !self.looking.ready || listed.duration_since(*since) >= LISTING_APART
        };
        let missing = self.undrained.missing.iter();
        let missing: Vec<&ClaimId> = missing
            .filter(|(_, since)| is_sure(since))
            .map(|(id, _)| id)
            .collect();
        let total = self.state.running_claims().count();
        let name = &self.state.cluster.name;
        (missing.len() > self.undrained_max(total)).then(|| Mismatch::NoNodes {
            instances: missing.len(),
            total,
            id: accept_id(name, "ends", missing.iter().map(|own| own.as_str())),
        })
    }

    /// Whether a listing is to tell soon if instances run whose Nodes are gone.
    pub(super) fn awaits_missing_nodes(&self) -> bool {
        let total = self.state.running_claims().count();
        self.undrained.missing.len() > self.undrained_max(total)
    }

    /// How many of so many instances may end without a drain while others still count.
    fn undrained_max(&self, total: usize) -> usize {
        let most = match self.state.cluster.brakes.undrained_max {
            Allowance::Nodes(count) => count as usize,
            Allowance::Percent(percent) => total * usize::from(percent) / 100,
        };
        most.max(1)
    }

    /// Whether the instance of a claim may end without a drain now. What ends within a while is
    /// counted, together with what has no Node and may be next.
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
            self.undrained.refused.insert(id.clone());
            return false;
        }
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
        // What is held goes on only when a person accepts it, or its Node comes back: one mistake
        // must not end all of a cluster bit by bit.
        let is_held = self.undrained.held.is_some() || !self.undrained.refused.is_empty();
        if is_held || ended + others + 1 > self.undrained_max(total) {
            self.undrained.refused.insert(id.clone());
            return false;
        }
        self.undrained.ended.push_back(now);
        self.works.entry(id.clone()).or_default().undrained = true;
        true
    }

    /// Whether this process has launched a claim, has seen the cluster ever since, and its Node
    /// never came: nothing can run there, however many they are.
    fn never_came(&self, claim: &Claim) -> bool {
        let since = |at: Option<Timestamp>| at.is_some_and(|at| claim.record.created >= at);
        let watched = since(self.state.started) && since(self.looking.thawed);
        watched && self.looking.frozen.is_none() && claim.node.is_none()
    }

    /// Whether a person has accepted that the instance of a claim ends: its own, or that this API
    /// server stands for the cluster that it was launched for.
    fn is_accepted(&self, claim: &Claim) -> bool {
        let launched_for = claim.record.origin.cluster_uid.as_ref();
        let is_other =
            launched_for.is_some_and(|own| Some(own) != self.state.cluster_uid().as_ref());
        is_other || self.undrained.accepted.contains(&claim.record.id)
    }

    /// Says which instances do not end before a person accepts it, once, and again where they are
    /// others.
    pub(super) fn tell_held_ends(&mut self) {
        let mut refused = std::mem::take(&mut self.undrained.refused);
        // What was held and was not asked for in this pass is held while it has no Node.
        let before = self.undrained.held.iter().flat_map(|own| &own.claims);
        let stays = |id: &&ClaimId| {
            let claim = self.state.ledger.claims.get(*id);
            claim.is_some_and(|own| runs_without_node(&self.state, own) && !self.is_accepted(own))
        };
        refused.extend(before.filter(stays).cloned());
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
        let name = &self.state.cluster.name;
        let held = HeldEnds {
            id: accept_id(name, "ends", refused.iter().map(ClaimId::as_str)),
            total: self.state.running_claims().count(),
            claims: refused,
        };
        self.undrained.held = Some(held.clone());
        self.report(Report::EndsHeld(held));
    }

    /// Instances that do not end before a person accepts it.
    pub fn held_ends(&self) -> Option<&HeldEnds> {
        self.undrained.held.as_ref()
    }
}

/// Whether the instance of a claim runs, as far as listings and answers say.
fn is_live(claim: &Claim) -> bool {
    claim
        .instance
        .as_ref()
        .is_some_and(|own| own.state.is_live())
}

fn runs_without_node(state: &State, claim: &Claim) -> bool {
    is_live(claim) && state.node_of(claim).is_none()
}
