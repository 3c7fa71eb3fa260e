//! What the provider says of instances beforehand: that they go, or are about to fail.
//! It must not know how it says so.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::disruption::repair::safeguard;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::event::Interruption;
use crate::engine::in_flight::CommandPurpose;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::cluster::Rebalance;
use crate::model::id::{ClaimId, InstanceId, PodKey, PoolName};
use crate::model::instance::{CapacityType, OfferingKey};
use crate::model::pool::Reason;
use crate::model::reservation::{BLOCK_CLOSES, ReservationKind};

/// Notices of instances that no listing shows are kept for this long.
const NOTICE_KEPT: SignedDuration = SignedDuration::from_mins(10);

/// The provider ends an instance within this after the time that its notice names, or the notice
/// was wrong.
const TAKEN_BACK_MAX: SignedDuration = SignedDuration::from_mins(5);

/// A node that may be taken back waits this long for others to take its place: launches and
/// registrations take a few minutes, and EC2 promises no time at all.
const REPLACED_MAX: SignedDuration = SignedDuration::from_mins(10);

/// Checks that fail are told of again and again, each minute or oftener: after this long without a
/// word they do not fail any more.
const FAILS_UNTIL: SignedDuration = SignedDuration::from_mins(3);

/// So many nodes of a pool may fail each for itself, however few there are.
const FAILING_MIN: usize = 2;

/// What was said of an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingInterruption {
    what: Interruption,
    /// When it happens, or happened.
    at: Timestamp,
    /// Whether it was heeded.
    heeded: bool,
}

/// An instance whose checks fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnhealthyInstance {
    /// When that was last said.
    heard: Timestamp,
    /// Whether anybody was told.
    told: bool,
    /// Whether anybody was told why it stays.
    braked: bool,
}

impl Engine {
    /// Takes a notice in. Notices come more than once, and of one instance there may be several:
    /// the one that leaves least time counts.
    pub(super) fn notice(
        &mut self,
        instance: InstanceId,
        (what, at): (Interruption, Timestamp),
        now: Timestamp,
    ) {
        if what == Interruption::Failed {
            let own = self.failing.entry(instance).or_insert(UnhealthyInstance {
                heard: now,
                told: false,
                braked: false,
            });
            own.heard = now;
            return;
        }
        let heeded = false;
        let new = PendingInterruption { what, at, heeded };
        let own = self.interrupted.entry(instance).or_insert(new);
        if what > own.what {
            *own = new;
        }
    }

    /// A Capacity Block takes its instances back without a word of the provider: those who are in
    /// one leave before it ends. Source: spec/aws.md §5.11 and §10, 89.
    pub(super) fn leave_blocks(&mut self, now: Timestamp) {
        let mut over = Vec::new();
        let mut next: Option<Timestamp> = None;
        let claims = self.state.ledger.claims.iter();
        for (id, claim) in claims.filter(|(_, own)| own.instance.is_some()) {
            let catalog = self.state.catalog_of(&claim.record.pool);
            let block = claim
                .reservation()
                .and_then(|own| catalog.reservations().get(own));
            let block = block.filter(|own| own.kind == ReservationKind::CapacityBlock);
            let Some(closes) = block.and_then(|own| own.ends?.checked_sub(BLOCK_CLOSES).ok())
            else {
                continue;
            };
            if closes <= now {
                over.push(id.clone());
            } else {
                next = Some(next.map_or(closes, |own| own.min(closes)));
            }
        }
        for id in over {
            self.let_go(&id, Reason::Interrupted, now);
        }
        if let Some(at) = next {
            self.wake_at(at, "a Capacity Block ends");
        }
    }

    /// Whether a notice of the provider says that it ends the instance of a claim about now. A spot
    /// notice counts only for a spot instance, one about a reservation only for an instance in it,
    /// and each until [`TAKEN_BACK_MAX`] after the time that it names.
    pub(super) fn is_taken_back(&self, id: &ClaimId, now: Timestamp) -> bool {
        let claim = self.state.ledger.claims.get(id);
        let Some(instance) = claim.and_then(|own| own.instance.as_ref()) else {
            return false;
        };
        let noticed = self.interrupted.get(&instance.id);
        noticed.is_some_and(|own| {
            let is_such = match own.what {
                Interruption::Spot => instance.offering.capacity_type == CapacityType::Spot,
                Interruption::Reservation => instance.offering.reservation.is_some(),
                Interruption::Stopping => true,
                _ => false,
            };
            let until = own.at.checked_add(TAKEN_BACK_MAX).unwrap_or(now);
            is_such && now < until
        })
    }

    /// Whether a node is being drained whose instance the provider takes back.
    pub(super) fn drains_interrupted(&self, now: Timestamp) -> bool {
        let ledger = &self.state.ledger;
        let mut noticed = self.interrupted.keys();
        noticed.any(|instance| {
            let id = ledger.by_instance(instance.as_str());
            let claim = id.and_then(|id| ledger.claims.get(id));
            claim.is_some_and(|own| {
                own.phase == ClaimPhase::Draining && self.is_taken_back(&own.record.id, now)
            })
        })
    }

    /// The provider takes instances back: their nodes leave at once, without any budget.
    pub(super) fn heed_interruptions(&mut self, now: Timestamp) {
        let ledger = &self.state.ledger;
        let known = self.interrupted.iter().filter_map(|(instance, own)| {
            let claim = ledger.by_instance(instance.as_str())?;
            Some((claim.clone(), instance.clone(), *own))
        });
        let known: Vec<(ClaimId, InstanceId, PendingInterruption)> = known.collect();
        for (id, instance, own) in known {
            let ignored = own.what == Interruption::Rebalance && self.ignores_rebalance();
            if !own.heeded {
                self.tell_of(&id, &instance, own.what, ignored, now);
            }
            if let Some(own) = self.interrupted.get_mut(&instance) {
                own.heeded = true;
            }
            let waits = match own.what {
                Interruption::Rebalance => self.replaces_on_advice(),
                // It is announced days ahead: nobody has to be without a place for it.
                Interruption::Maintenance => true,
                _ => false,
            };
            if self.replaces_first(&id, waits, now) {
                continue;
            }
            if !ignored {
                self.let_go(&id, own.what.reason(), now);
            }
        }
        // A notice may come before the listing that shows its instance.
        let ledger = &self.state.ledger;
        self.interrupted.retain(|instance, own| {
            let over = own.at.checked_add(NOTICE_KEPT).unwrap_or(now);
            now < over || ledger.by_instance(instance.as_str()).is_some()
        });
        self.heed_failing(now);
    }

    /// Ends nodes whose checks fail, with all that is on them. Many of a pool hardly fail each for
    /// itself, and may be well again in a moment: they stay, as where many are broken
    /// (docs/decisions/025). So does whatever was told of while the cluster could not be seen,
    /// until it is told of again.
    fn heed_failing(&mut self, now: Timestamp) {
        self.failing
            .retain(|_, own| now.duration_since(own.heard) < FAILS_UNTIL);
        if self.failing.is_empty() {
            return;
        }
        let ledger = &self.state.ledger;
        let mut pools: BTreeMap<PoolName, (usize, usize)> = BTreeMap::new();
        let mut leaving = 0;
        for claim in ledger.claims.values().filter(|own| own.node.is_some()) {
            let instance = claim.instance.as_ref();
            let fails = instance.is_some_and(|own| self.failing.contains_key(&own.id));
            leaving += usize::from(claim.leaving == Some(Reason::Unhealthy));
            let own = pools.entry(claim.record.pool.clone()).or_default();
            *own = (own.0 + usize::from(fails), own.1 + 1);
        }
        let known = self.failing.keys().filter_map(|instance| {
            let id = ledger.by_instance(instance.as_str())?;
            let claim = ledger.claims.get(id)?;
            let has_node = claim.node.is_some();
            let goes = claim.leaving == Some(Reason::Unhealthy);
            let pool = pools.get(&claim.record.pool).filter(|_| has_node);
            (!goes).then(|| (instance.clone(), id.clone(), pool.copied()))
        });
        let known: Vec<_> = known.collect();
        for (instance, id, pool) in known {
            if self.failing.get(&instance).is_some_and(|own| !own.told) {
                self.tell_of(&id, &instance, Interruption::Failed, false, now);
            }
            let stays = pool.and_then(|own| safeguard(own, FAILING_MIN, leaving));
            let Some(own) = self.failing.get_mut(&instance) else {
                continue;
            };
            own.told = true;
            match stays {
                Some(why) if !std::mem::replace(&mut own.braked, true) => {
                    self.report(Report::Kept {
                        claim: id,
                        reason: Reason::Unhealthy,
                        why: why.to_string(),
                    });
                }
                None if pool.is_none() || self.is_ready() => {
                    leaving += usize::from(pool.is_some());
                    self.let_go(&id, Reason::Unhealthy, now);
                }
                _ => {}
            }
        }
    }

    fn replaces_on_advice(&self) -> bool {
        let policy = self.state.cluster.interruption.as_ref();
        policy.is_some_and(|own| own.rebalance == Rebalance::ReplaceFirst)
    }

    /// Whether a node that will be taken back, and not at once, stays until others have taken its
    /// place: its pods are planned for meanwhile as if it were leaving, and nothing else is planned
    /// for it.
    fn replaces_first(&mut self, id: &ClaimId, waits: bool, now: Timestamp) -> bool {
        let Some(claim) = self.state.ledger.claims.get_mut(id) else {
            return false;
        };
        let runs = matches!(
            claim.phase,
            ClaimPhase::Registered | ClaimPhase::Initialized
        );
        if !waits || !runs || claim.leaving.is_some() {
            claim.replaced_since = None;
            return false;
        }
        claim.replaced_since.get_or_insert(now);
        true
    }

    /// Lets nodes go whose pods have a place elsewhere by now, or that have waited for long enough.
    pub(super) fn leave_replaced(&mut self, now: Timestamp) {
        let claims = self.state.ledger.claims.values();
        let going = claims.filter(|own| own.leaving.is_none());
        let going = going.filter_map(|own| {
            let since = own.replaced_since?;
            let reschedulable = self.state.reschedulable_of(own, now);
            let reschedulable: Vec<PodKey> = reschedulable.map(|pod| pod.key.clone()).collect();
            Some((own.record.id.clone(), since, reschedulable))
        });
        let going: Vec<_> = going.collect();
        let mut over = Vec::new();
        let mut next: Option<Timestamp> = None;
        for (id, since, reschedulable) in going {
            let until = since.checked_add(REPLACED_MAX).unwrap_or(now);
            if until <= now || self.have_places(&reschedulable, now) {
                over.push(id);
            } else {
                next = Some(next.map_or(until, |own| own.min(until)));
            }
        }
        for id in over {
            self.let_go(&id, Reason::Interrupted, now);
        }
        if let Some(at) = next {
            self.wake_at(at, "a node is to leave whether or not it is replaced");
        }
    }

    /// Karpenter's way, where nothing else is said. Source: spec/aws.md §10, 91.
    fn ignores_rebalance(&self) -> bool {
        let policy = self.state.cluster.interruption.as_ref();
        policy.is_none_or(|own| own.rebalance == Rebalance::Ignore)
    }

    /// Said once of each notice. What is taken back is not to be had for a while.
    fn tell_of(
        &mut self,
        id: &ClaimId,
        instance: &InstanceId,
        what: Interruption,
        ignored: bool,
        now: Timestamp,
    ) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        let offering = claim.instance.as_ref().map(|own| own.offering.clone());
        let node = claim.node.clone();
        self.report(Report::Interrupted {
            claim: id.clone(),
            node,
            instance: instance.clone(),
            what,
            ignored,
        });
        let gone = matches!(what, Interruption::Spot | Interruption::Reservation);
        if let Some(offering) = offering.filter(|_| gone) {
            self.hold_down(offering, now);
        }
    }

    fn let_go(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) {
        let claim = self.state.ledger.claims.get_mut(id);
        match claim.and_then(|claim| claim.leaving.as_mut()) {
            // Checks that fail leave no time, whatever else is about to happen.
            Some(Reason::Unhealthy) => {}
            Some(own) => *own = reason,
            None => self.retire(id, reason, now),
        }
    }

    /// What is taken back is not there for others either.
    fn hold_down(&mut self, offering: OfferingKey, now: Timestamp) {
        let until = self.state.holds.refuse(None, &offering, now);
        if self.state.fleet.is_some() {
            let what = vec![offering.into()];
            let command = Command::MarkUnavailable { what, until };
            self.issue(command, CommandPurpose::MarkUnavailable, now);
        }
    }
}
