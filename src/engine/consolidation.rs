//! When the whole cluster is weighed for what it could cost, and how nodes that can be had for
//! less begin to leave.
//! It must not know which these are.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::event::Event;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, PodKey, PoolName};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::model::watched_object::{ObjectKind, WatchedObject};
use crate::plan::{self, Plan};

/// Pods that come and go tend to do so together: the cluster is weighed once this long nothing has
/// changed in it, or at the latest so long after it could have been.
const CALM: SignedDuration = SignedDuration::from_secs(2);
const CALM_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Two weighings are at least this far apart: twice as far after each that found nothing, up to
/// five minutes, and further where there are many nodes, since it may take a second for thousands.
const APART: SignedDuration = SignedDuration::from_secs(5);
const APART_DOUBLED_MAX: u32 = 6;

/// When one pod in so many has left since, it does not matter how many weighings found nothing.
const LEFT_MANY: usize = 50;
const APART_EACH: SignedDuration = SignedDuration::from_millis(10);

/// Whatever makes another cluster cheaper is heard of, or known to come. Should anything be missed,
/// it is found out so often.
const REGULARLY: SignedDuration = SignedDuration::from_hours(1);

/// Nodes that were to leave together are waited for, for at most this long: what a move comes to is
/// not known before.
const MOVING_MAX: SignedDuration = SignedDuration::from_secs(30);

/// What has happened since the cluster was last weighed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConsolidationSchedule {
    /// When it was.
    last: Option<Timestamp>,
    /// How many found nothing since one did.
    vain: u32,
    /// How many pods have left their nodes since.
    left: usize,
    /// When something first and last changed since.
    stirred: Option<(Timestamp, Timestamp)>,
    /// When a budget or a window lets nodes go that wait for that alone, or something comes back
    /// that is held down.
    opens: Option<Timestamp>,
    /// When another node may be weighed for the first time, or again, or takes pods of others.
    ripens: Option<Timestamp>,
    /// When it was last put off since nodes were to have left together.
    waited: Option<Timestamp>,
    /// When nodes last began to leave together.
    moved: Option<Timestamp>,
}

impl ConsolidationSchedule {
    /// Something changed that may make another cluster cheaper.
    pub(super) fn mark_changed(&mut self, now: Timestamp) {
        let first = self.stirred.map_or(now, |(first, _)| first.min(now));
        self.stirred = Some((first, now));
    }

    /// A pod has left its node.
    fn left(&mut self, pods: usize) {
        self.left += 1;
        if self.left * LEFT_MANY >= pods {
            self.vain = 0;
        }
    }

    /// When the cluster is to be weighed next. While it changes it is so only a while after it
    /// could have been: half of a change looks like a fleet to be mended.
    fn due(&self, nodes: usize) -> Timestamp {
        let calm = |from: Timestamp| {
            // The last of those who have moved are only just there.
            let from = self.waited.map_or(from, |at| from.max(after(at, CALM)));
            match self.stirred {
                Some((_, latest)) => from.max(after(latest, CALM).min(after(from, CALM_MAX))),
                None => from,
            }
        };
        let first = self.stirred.map(|own| own.0);
        let Some(last) = self.last else {
            return first.map_or(Timestamp::MIN, calm);
        };
        let nodes = i32::try_from(nodes).unwrap_or(i32::MAX);
        let each = APART_EACH.checked_mul(nodes).unwrap_or(REGULARLY);
        let apart = |doubled: u32| {
            let apart = APART * 2_i32.pow(doubled.min(APART_DOUBLED_MAX));
            after(last, apart.saturating_add(each))
        };
        let stirred = first.map(|at| calm(at.max(apart(self.vain))));
        // What is known to come is no guess, however many were in vain.
        let opens = self.opens.map(|at| calm(at.max(apart(0))));
        let ripens = self.ripens.map(|at| calm(at.max(apart(self.vain))));
        let sooner = stirred.into_iter().chain(opens).chain(ripens).min();
        let regularly = after(last, REGULARLY);
        sooner.map_or(regularly, |at| at.min(regularly))
    }
}

fn after(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}

impl Engine {
    /// Takes note of what may make another cluster cheaper. Pods change often, and hardly ever in
    /// where they are or in what people say of them.
    pub(super) fn stirred(&mut self, event: &Event, now: Timestamp) {
        let objects = &self.state.objects;
        let stirs = match event {
            Event::Applied(WatchedObject::Pod(pod)) => {
                let place = |pod: &Pod| (pod.is_terminal(), pod.deleting.is_some());
                let same = |known: &Pod| {
                    known.node == pod.node
                        && place(known) == place(pod)
                        && known.labels == pod.labels
                        && known.annotations == pod.annotations
                        && known.requests == pod.requests
                };
                !objects.pods.get(&pod.key).is_some_and(same)
            }
            Event::Applied(WatchedObject::Node(node)) => {
                let same = |known: &Node| {
                    known.taints == node.taints
                        && known.labels == node.labels
                        && known.annotations == node.annotations
                        && known.allocatable == node.allocatable
                };
                !objects.nodes.get(&node.name).is_some_and(same)
            }
            Event::Deleted(ObjectKind::Pod, _) => {
                self.weighing.left(objects.pods.len());
                true
            }
            Event::Applied(WatchedObject::Pdb(_))
            | Event::Deleted(ObjectKind::Node | ObjectKind::Pdb, _)
            | Event::Reset(ObjectKind::Pod | ObjectKind::Node | ObjectKind::Pdb, _)
            | Event::ConfigChanged(_)
            | Event::CatalogChanged(_)
            | Event::ClassesChanged(_)
            | Event::FleetChanged(_)
            | Event::HeldDown(..) => true,
            _ => false,
        };
        if stirs {
            self.weighing.mark_changed(now);
        }
    }

    /// Weighs the cluster, and lets nodes go that can be had for less. Not while pods wait whose
    /// place nobody has worked out yet.
    pub(super) fn consolidate(&mut self, now: Timestamp) {
        let due = self.weighing.due(self.state.objects.nodes.len());
        if due > now {
            self.wake_at(due, "the cluster is to be weighed");
            return;
        }
        let planned = self.batch.due(&self.state.cluster.batching);
        let waits = self.batch.has_new() || planned.is_some_and(|at| at <= now);
        if waits || self.state.ledger.claims.is_empty() {
            return;
        }
        if let Some(at) = self.moving_until(now) {
            self.weighing.waited = Some(now);
            self.wake_at(at, "nodes are to have left together");
            return;
        }
        self.heed_rests(now);
        let mut plan = plan::consolidate(
            &self.state.disruption_view(now),
            &self.state.field(now),
            now,
        );
        self.tell_shut(&plan, true);
        self.tell_eligible(&plan, &[Reason::Underutilized]);
        let braked = plan.kept.iter().filter(|own| own.verdict.is_safeguard());
        let opens = braked.filter_map(|own| own.verdict.until());
        let opens = opens.chain(self.state.next_back(now));
        let ripens = plan::next_due(&plan.kept)
            .into_iter()
            .chain(plan.takes_again);
        self.weighing = ConsolidationSchedule {
            last: Some(now),
            opens: opens.filter(|at| *at > now).min(),
            vain: if plan.retire.is_empty() {
                self.weighing.vain.saturating_add(1)
            } else {
                0
            },
            left: 0,
            stirred: None,
            ripens: ripens.filter(|at| *at > now).min(),
            waited: None,
            ..self.weighing
        };
        self.stays.weighed(&mut plan);
        let again = self.weighing.due(self.state.objects.nodes.len());
        self.wake_at(again, "the cluster is to be weighed");
        if plan.retire.is_empty() {
            return;
        }
        let claims = plan.retire.iter().filter_map(|own| own.claim.as_ref());
        if !claims
            .clone()
            .any(|own| !self.observed_leaving.contains(own))
        {
            return;
        }
        self.weighing.moved = Some(now);
        let pool = plan.retire.first().map(|own| &own.pool);
        let same = |pool: &&PoolName| plan.retire.iter().all(|own| own.pool == **pool);
        self.report(Report::Consolidates {
            pool: pool.filter(same).cloned(),
            nodes: plan.retire.len(),
            claims: plan.launches.len(),
            before: plan.retire.iter().filter_map(|own| own.price).sum(),
            after: plan::cost(&plan.launches),
        });
        self.begin(plan, now);
    }

    /// Until when nodes are waited for that leave together and have pods to move.
    fn moving_until(&self, now: Timestamp) -> Option<Timestamp> {
        if self.waves.are_under_way() {
            return Some(after(now, CALM));
        }
        let until = after(self.weighing.moved?, MOVING_MAX);
        let mut claims = self.state.ledger.claims.values();
        let moves = claims.any(|own| {
            own.leaving == Some(Reason::Underutilized) && own.phase == ClaimPhase::Draining
        });
        Some(until).filter(|at| moves && *at > now)
    }

    /// The nodes are closed, and what comes in their place is made. Where nothing may be done, that
    /// is told.
    fn begin(&mut self, plan: Plan, now: Timestamp) {
        if !self.manages() {
            self.tell_foregone(plan);
            return;
        }
        let claims = plan.retire.iter().filter_map(|own| own.claim.clone());
        let claims: Vec<ClaimId> = claims.collect();
        self.begin_moves(&plan, now);
        for claim in &claims {
            self.retire(claim, Reason::Underutilized, now);
        }
        self.places.planned_too(&plan);
        self.carry_out(plan, Reason::Underutilized.as_str(), now);
        // Their places are known: nobody has to plan for them again.
        let waiting = self.state.waiting(now);
        let waiting: Vec<&PodKey> = waiting.into_iter().map(|pod| &pod.key).collect();
        self.batch.observe(&waiting, now);
        self.batch.planned(now);
    }

    /// Tells who would leave, and what would come in their place.
    fn tell_foregone(&mut self, plan: Plan) {
        for own in plan.retire {
            if let Some(claim) = own.claim.clone() {
                self.would_retire(claim, own);
            }
        }
        for own in plan.launches {
            let Some((offering, price)) = own.offerings.first().cloned() else {
                continue;
            };
            let claim = ClaimId::from(self.fresh_id());
            self.report(Report::ClaimPlanned {
                claim,
                pool: own.pool,
                offering,
                price,
                offerings: own.offerings.len(),
                pods: own.pods,
            });
        }
    }

    /// Keeps nodes that were to leave since their pods fit elsewhere, where a plan has no place for
    /// some of them but on yet another node that costs too much of what is saved. Returns whether
    /// there are any: then the plan is void.
    pub(super) fn keep_needed(&mut self, plan: &Plan, now: Timestamp) -> bool {
        let unplaced = plan.unplaced.iter().map(|own| (&own.pod, f64::INFINITY));
        let launched = plan.launches.iter().flat_map(|own| {
            let each = self.costs_each(own);
            own.pods.iter().map(move |pod| (pod, each))
        });
        let homeless: BTreeMap<&PodKey, f64> = launched.chain(unplaced).collect();
        if homeless.is_empty() {
            return false;
        }
        let claims = self.state.ledger.claims.iter();
        let waits = |id: &ClaimId| !self.works.get(id).is_some_and(|own| own.drain.released);
        let leaving =
            claims.filter(|(id, own)| own.leaving == Some(Reason::Underutilized) && waits(id));
        let mut needed: Vec<ClaimId> = Vec::new();
        let mut costs: Vec<(ClaimId, f64)> = Vec::new();
        for (id, own) in leaving {
            let reschedulable = self.state.reschedulable_of(own, now);
            let cost: f64 = reschedulable.filter_map(|pod| homeless.get(&pod.key)).sum();
            if cost > self.may_cost(id) {
                needed.push(id.clone());
            } else if cost > 0.0 {
                costs.push((id.clone(), cost));
            }
        }
        for id in &needed {
            self.withdraw_node(
                id,
                "its pods have no place elsewhere any more".to_owned(),
                now,
            );
        }
        if needed.is_empty() {
            for (id, cost) in costs {
                self.saves_less(&id, cost);
            }
        }
        !needed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::ConsolidationSchedule;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn at(seconds: i64) -> Timestamp {
        NOW + SignedDuration::from_secs(seconds)
    }

    /// Seconds after the last weighing when the next is due, of a cluster without nodes.
    fn check(change: impl FnOnce(&mut ConsolidationSchedule), expect: i64) {
        let mut own = ConsolidationSchedule {
            last: Some(NOW),
            ..ConsolidationSchedule::default()
        };
        change(&mut own);
        let due = own.due(0).duration_since(NOW).as_secs();
        assert_eq!(due, expect, "{own:?}");
    }

    #[test]
    fn a_cluster_is_weighed_when_it_is_still_and_not_too_often() {
        let mark_changed = |own: &mut ConsolidationSchedule, all: &[i64]| {
            all.iter().for_each(|it| own.mark_changed(at(*it)))
        };
        check(|_| {}, 3600);
        check(|own| mark_changed(own, &[1]), 5);
        check(|own| mark_changed(own, &[1, 4]), 6);
        check(|own| mark_changed(own, &[100]), 102);
        check(|own| mark_changed(own, &(1..100).collect::<Vec<_>>()), 35);
        let vain = |own: &mut ConsolidationSchedule| own.vain = 3;
        check(|own| (vain(own), mark_changed(own, &[1])).1, 40);
        // What is known to come is no guess.
        let opens = |own: &mut ConsolidationSchedule, it| own.opens = Some(at(it));
        check(|own| (vain(own), opens(own, 7)).1, 7);
        check(|own| (opens(own, 100), mark_changed(own, &[99])).1, 101);
        // Nothing changes meanwhile, so that nobody waits for it.
        let ripens = |own: &mut ConsolidationSchedule, it| own.ripens = Some(at(it));
        check(|own| (opens(own, 100), ripens(own, 1000)).1, 100);
        check(|own| (vain(own), ripens(own, 7)).1, 40);
        // It was put off until then: who was waited for has only just come.
        let waited = |own: &mut ConsolidationSchedule, it| own.waited = Some(at(it));
        check(|own| (mark_changed(own, &[1, 70]), waited(own, 70)).1, 72);
        check(|own| (mark_changed(own, &[1, 71]), waited(own, 70)).1, 73);
        // Before the first weighing only stillness counts.
        let mut new = ConsolidationSchedule::default();
        assert_eq!(new.due(0), Timestamp::MIN);
        new.mark_changed(NOW);
        assert_eq!(new.due(0), at(2));
    }
}
