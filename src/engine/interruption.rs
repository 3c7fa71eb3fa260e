//! Handles interruption notices and failing status checks of instances.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::disruption::repair::repair_safeguard;
use crate::engine::context::Context;
use crate::engine::controllers::{
    Interruptions, Nominations, PendingInterruption, UnhealthyInstance,
};
use crate::engine::drain;
use crate::engine::drain::deadline;
use crate::engine::fleet_sync;
use crate::engine::replacement_pods;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::cluster::Rebalance;
use crate::model::id::{ClaimId, InstanceId, PodKey, PoolName};
use crate::model::instance::CapacityType;
use crate::model::pool::Reason;
use crate::model::reservation::{BLOCK_CLOSES, ReservationKind};
use crate::provider::{Interruption, NoticeReceipt, OfferingRefusal, RefusalKind};
use crate::state::node_capacity::offering_of;

/// Notices about instances that no listing shows are kept for this long.
const NOTICE_KEPT: SignedDuration = SignedDuration::from_mins(10);

/// Maximum number of receipts per instance. The sender of a further notice gets no receipt, and
/// sends the notice again.
const RECEIPTS_MAX: usize = 16;

/// Maximum time between the announced time and the provider's termination. After this time the
/// notice is considered wrong.
const TAKEN_BACK_MAX: SignedDuration = SignedDuration::from_mins(5);

/// Maximum time that a node with a rebalance recommendation waits for replacements. Launches and
/// registrations take a few minutes, and EC2 guarantees no minimum time after the recommendation.
const REPLACED_MAX: SignedDuration = SignedDuration::from_mins(10);

/// Failing checks are reported at least every minute. After this time without a report, the checks
/// are considered as passing.
const FAILS_UNTIL: SignedDuration = SignedDuration::from_mins(3);

/// Number of nodes of a pool that may fail independently, even in a small pool.
const FAILING_MIN: usize = 2;

impl Interruptions {
    /// Records a notice. Notices are repeated, and an instance may have several: the most urgent
    /// one is kept.
    fn record_notice(
        &mut self,
        instance: InstanceId,
        interruption: Interruption,
        at: Timestamp,
        now: Timestamp,
    ) {
        if interruption == Interruption::Failed {
            let unhealthy = self.unhealthy.entry(instance).or_insert(UnhealthyInstance {
                heard: now,
                told: false,
                braked: false,
            });
            unhealthy.heard = now;
            return;
        }
        let heeded = false;
        let new = PendingInterruption { what: interruption, at, heeded };
        let known = self.notices.entry(instance).or_insert(new);
        if interruption > known.what {
            *known = new;
        }
    }

    /// Records a notice whose sender may await a receipt.
    pub(super) fn on_notice(
        &mut self,
        instance: InstanceId,
        interruption: Interruption,
        at: Timestamp,
        receipt: Option<NoticeReceipt>,
        now: Timestamp,
    ) {
        if let Some(receipt) = receipt {
            self.keep_receipt(&instance, interruption, receipt);
        }
        self.record_notice(instance, interruption, at, now);
    }

    /// Keeps the receipt of a notice until the notice is handled. Failing status checks are
    /// reported again while they fail.
    fn keep_receipt(
        &mut self,
        instance: &InstanceId,
        interruption: Interruption,
        receipt: NoticeReceipt,
    ) {
        if interruption == Interruption::Failed {
            return receipt.acknowledge();
        }
        let waiting = self.receipts.entry(instance.clone()).or_default();
        if waiting.len() < RECEIPTS_MAX {
            waiting.push(receipt);
        }
    }

    /// Disrupts the nodes of a Capacity Block before it ends. EC2 sends no notice about the end of
    /// a Capacity Block. Source: spec/aws.md §5.11 and §10, 89.
    pub(super) fn disrupt_ending_blocks(&self, cx: &mut Context, now: Timestamp) {
        let mut due = Vec::new();
        let mut next: Option<Timestamp> = None;
        let claims = cx.state.ledger.claims.iter();
        for (id, claim) in claims.filter(|(_, claim)| claim.instance.is_some()) {
            let catalog = cx.state.catalog_of(&claim.record.pool);
            let block = claim
                .reservation_id()
                .and_then(|reservation| catalog.reservations().get(reservation));
            let block = block.filter(|block| block.kind == ReservationKind::CapacityBlock);
            let Some(closes) = block.and_then(|block| block.ends?.checked_sub(BLOCK_CLOSES).ok())
            else {
                continue;
            };
            if closes <= now {
                due.push(id.clone());
            } else {
                next = Some(next.map_or(closes, |earliest| earliest.min(closes)));
            }
        }
        for id in due {
            self.disrupt_now(cx, &id, Reason::Interrupted, now);
        }
        cx.outbox.wake_at(next, "a Capacity Block ends");
    }

    /// Returns whether a notice announces that the provider terminates the instance of a claim
    /// about now. A spot notice applies only to a spot instance, and a notice about a reservation
    /// only to an instance in this reservation. Each notice applies until [`TAKEN_BACK_MAX`] after
    /// the announced time.
    pub(super) fn is_reclaimed(&self, cx: &Context, id: &ClaimId, now: Timestamp) -> bool {
        let claim = cx.claim(id);
        let Some(instance) = claim.and_then(|claim| claim.instance.as_ref()) else {
            return false;
        };
        self.notices.get(&instance.id).is_some_and(|notice| {
            let is_such = match notice.what {
                Interruption::Spot => instance.offering.capacity_type == CapacityType::Spot,
                Interruption::Reservation => instance.offering.reservation.is_some(),
                Interruption::Stopping => true,
                _ => false,
            };
            let until = notice.at.checked_add(TAKEN_BACK_MAX).unwrap_or(now);
            is_such && now < until
        })
    }

    /// Returns whether any interrupted node is being drained.
    pub(super) fn drains_interrupted(&self, cx: &Context, now: Timestamp) -> bool {
        let ledger = &cx.state.ledger;
        self.notices.keys().any(|instance| {
            let id = ledger.by_instance(instance.as_str());
            let claim = id.and_then(|id| ledger.claims.get(id));
            claim.is_some_and(|claim| {
                claim.phase == ClaimPhase::Draining && self.is_reclaimed(cx, &claim.record.id, now)
            })
        })
    }

    /// Records a notice for each instance that listings show as stopped, in case its message was
    /// lost or there is no queue. Its pods do not run, and it counts towards limits.
    fn record_stopped_instances(&mut self, cx: &Context, now: Timestamp) {
        let claims = cx.state.ledger.claims.values();
        let stopped = claims.filter(|claim| claim.is_stopped && claim.leaving.is_none());
        for instance in stopped.filter_map(|claim| claim.instance.as_ref()) {
            self.record_notice(instance.id.clone(), Interruption::Stopping, now, now);
        }
    }

    /// Disrupts the nodes of interrupted instances immediately and without budgets.
    pub(super) fn handle_interruptions(&mut self, cx: &mut Context, now: Timestamp) {
        if cx.is_managing() {
            self.record_stopped_instances(cx, now);
        }
        let ledger = &cx.state.ledger;
        let known = self.notices.iter().filter_map(|(instance, notice)| {
            let claim = ledger.by_instance(instance.as_str())?;
            Some((claim.clone(), instance.clone(), *notice))
        });
        let known: Vec<(ClaimId, InstanceId, PendingInterruption)> = known.collect();
        for (id, instance, notice) in known {
            let policy = rebalance_policy(cx);
            let ignored = notice.what == Interruption::Rebalance && policy == Rebalance::Ignore;
            if !notice.heeded {
                report_interruption(cx, &id, &instance, notice.what, ignored, now);
            }
            if let Some(notice) = self.notices.get_mut(&instance) {
                notice.heeded = true;
            }
            let waits = match notice.what {
                Interruption::Rebalance => policy == Rebalance::ReplaceFirst,
                // Maintenance is announced days ahead, so each pod gets a place first.
                Interruption::Maintenance => true,
                _ => false,
            };
            if mark_for_replacement(cx, &id, waits, now) {
                continue;
            }
            if !ignored {
                self.disrupt_now(cx, &id, notice.what.disruption_reason(), now);
            }
        }
        // A notice may arrive before the listing that shows its instance.
        let ledger = &cx.state.ledger;
        self.notices.retain(|instance, notice| {
            let until = notice.at.checked_add(NOTICE_KEPT).unwrap_or(now);
            now < until || ledger.by_instance(instance.as_str()).is_some()
        });
        self.acknowledge_handled(cx);
        self.handle_failing_instances(cx, now);
    }

    /// Acknowledges the receipts of handled notices, and of notices that are no longer kept.
    fn acknowledge_handled(&mut self, cx: &Context) {
        let notices = &self.notices;
        self.receipts.retain(|instance, waiting| {
            let notice = notices.get(instance);
            if notice.is_some_and(|notice| !is_handled(cx, instance, notice)) {
                return true;
            }
            waiting.iter().for_each(NoticeReceipt::acknowledge);
            false
        });
    }

    /// Terminates nodes whose status checks fail, with all their pods. If many nodes of a pool
    /// fail, the cause is probably shared and may be temporary: they are kept, as if many nodes
    /// were not ready (docs/decisions/025-safeguards.md). Failures reported while the cluster state
    /// was out of sync are also ignored until they are reported again.
    fn handle_failing_instances(&mut self, cx: &mut Context, now: Timestamp) {
        self.unhealthy.retain(|_, unhealthy| now.duration_since(unhealthy.heard) < FAILS_UNTIL);
        if self.unhealthy.is_empty() {
            return;
        }
        let ledger = &cx.state.ledger;
        let mut pools: BTreeMap<PoolName, (usize, usize)> = BTreeMap::new();
        let mut leaving = 0;
        for claim in ledger.claims.values().filter(|claim| claim.node.is_some()) {
            let instance = claim.instance.as_ref();
            let fails = instance.is_some_and(|instance| self.unhealthy.contains_key(&instance.id));
            leaving += usize::from(claim.leaving == Some(Reason::Unhealthy));
            let counts = pools.entry(claim.record.pool.clone()).or_default();
            *counts = (counts.0 + usize::from(fails), counts.1 + 1);
        }
        let known = self.unhealthy.keys().filter_map(|instance| {
            let id = ledger.by_instance(instance.as_str())?;
            let claim = ledger.claims.get(id)?;
            let has_node = claim.node.is_some();
            let goes = claim.leaving == Some(Reason::Unhealthy);
            let pool = pools.get(&claim.record.pool).filter(|_| has_node);
            (!goes).then(|| (instance.clone(), id.clone(), pool.copied()))
        });
        let known: Vec<_> = known.collect();
        for (instance, id, pool) in known {
            if self.unhealthy.get(&instance).is_some_and(|unhealthy| !unhealthy.told) {
                report_interruption(cx, &id, &instance, Interruption::Failed, false, now);
            }
            let stays = pool
                .and_then(|(broken, total)| repair_safeguard(broken, total, FAILING_MIN, leaving));
            let Some(unhealthy) = self.unhealthy.get_mut(&instance) else {
                continue;
            };
            unhealthy.told = true;
            match stays {
                Some(why) if !std::mem::replace(&mut unhealthy.braked, true) => {
                    cx.outbox.push_report(Report::Kept {
                        claim: id,
                        reason: Reason::Unhealthy,
                        why: why.to_string(),
                    });
                }
                None if pool.is_none() || cx.is_ready() => {
                    leaving += usize::from(pool.is_some());
                    self.disrupt_now(cx, &id, Reason::Unhealthy, now);
                }
                _ => {}
            }
        }
    }

    fn disrupt_now(&self, cx: &mut Context, id: &ClaimId, reason: Reason, now: Timestamp) {
        let claim = cx.state.ledger.claims.get_mut(id);
        match claim.and_then(|claim| claim.leaving.as_mut()) {
            // Other notices do not replace this reason, because its deadline is now.
            Some(Reason::Unhealthy) => {}
            Some(leaving) => *leaving = reason,
            None => drain::disrupt_node(cx, self, id, reason, now),
        }
    }
}

/// Returns whether another host would have to do nothing if it received this notice: it would
/// resume the disruption, or the node is gone.
fn is_handled(cx: &Context, instance: &InstanceId, notice: &PendingInterruption) -> bool {
    let id = cx.state.ledger.by_instance(instance.as_str());
    let Some(claim) = id.and_then(|id| cx.claim(id)) else {
        // The claim has ended. If the instance was never listed, the listing may come later, but
        // the node of an instance that is ending needs no drain.
        return cx.is_ready() && (notice.heeded || notice.what == Interruption::Stopping);
    };
    let node = cx.state.node_of(claim);
    // The next leader resumes the disruption. It would cancel one for another reason.
    let is_closed =
        node.map_or(cx.is_ready(), |node| deadline::unfinished_disruption(node).is_some());
    let ignored =
        notice.what == Interruption::Rebalance && rebalance_policy(cx) == Rebalance::Ignore;
    notice.heeded && (ignored || (claim.leaving.is_some() && is_closed))
}

/// Returns whether an interrupted node with enough time is kept until replacements are ready.
/// Meanwhile the pods of the node are planned as reschedulable, and no other pods are planned for
/// the node.
fn mark_for_replacement(cx: &mut Context, id: &ClaimId, waits: bool, now: Timestamp) -> bool {
    let Some(claim) = cx.state.ledger.claims.get_mut(id) else {
        return false;
    };
    if !waits || !claim.has_joined() || claim.leaving.is_some() {
        claim.replaced_since = None;
        return false;
    }
    claim.replaced_since.get_or_insert(now);
    true
}

/// Disrupts interrupted nodes whose pods have places elsewhere, and those that have waited long
/// enough.
pub(super) fn disrupt_replaced_nodes(
    cx: &mut Context,
    nominations: &Nominations,
    interruptions: &Interruptions,
    now: Timestamp,
) {
    let claims = cx.state.ledger.claims.values();
    let replaced = claims.filter(|claim| claim.leaving.is_none());
    let replaced = replaced.filter_map(|claim| {
        let since = claim.replaced_since?;
        let pods = cx.state.reschedulable_of(claim, now);
        let pods: Vec<PodKey> = pods.map(|pod| pod.key.clone()).collect();
        Some((claim.record.id.clone(), since, pods))
    });
    let replaced: Vec<_> = replaced.collect();
    let mut due = Vec::new();
    let mut next: Option<Timestamp> = None;
    for (id, since, pods) in replaced {
        let until = since.checked_add(REPLACED_MAX).unwrap_or(now);
        if until <= now || replacement_pods::have_places(cx, nominations, &pods, now) {
            due.push(id);
        } else {
            next = Some(next.map_or(until, |earliest| earliest.min(until)));
        }
    }
    for id in due {
        interruptions.disrupt_now(cx, &id, Reason::Interrupted, now);
    }
    cx.outbox.wake_at(next, "a node is disrupted even without a replacement");
}

/// Returns how rebalance recommendations are handled. The default is the behavior of Karpenter.
/// Source: spec/aws.md §10, 91.
fn rebalance_policy(cx: &Context) -> Rebalance {
    let policy = cx.state.cluster.interruption.as_ref();
    policy.map_or(Rebalance::Ignore, |policy| policy.rebalance)
}

/// Reports each notice once. Puts the offering of an interrupted instance in back-off.
fn report_interruption(
    cx: &mut Context,
    id: &ClaimId,
    instance: &InstanceId,
    interruption: Interruption,
    ignored: bool,
    now: Timestamp,
) {
    let Some(claim) = cx.claim(id) else {
        return;
    };
    let offering = offering_of(claim).cloned();
    let node = claim.node.clone();
    cx.outbox.push_report(Report::Interrupted {
        claim: id.clone(),
        node,
        instance: instance.clone(),
        what: interruption,
        ignored,
    });
    let is_reclaimed = matches!(interruption, Interruption::Spot | Interruption::Reservation);
    if let Some(offering) = offering.filter(|_| is_reclaimed) {
        let kind = RefusalKind::InsufficientCapacity;
        fleet_sync::on_offerings_refused(cx, None, &[OfferingRefusal { offering, kind }], now);
    }
}
