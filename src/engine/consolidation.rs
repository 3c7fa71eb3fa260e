//! Decides when consolidation runs, and starts the disruption of the nodes that it selects.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::engine::backoff::time_after;
use crate::engine::claims;
use crate::engine::consolidation_feedback;
use crate::engine::context::Context;
use crate::engine::controllers::{Consolidation, ConsolidationSchedule, Interruptions};
use crate::engine::drain;
use crate::engine::drain::cancellation;
use crate::engine::drain::waves;
use crate::engine::event::Event;
use crate::engine::lease_annotations::LeaseSync;
use crate::engine::provisioning;
use crate::engine::provisioning::Provisioning;
use crate::engine::report::Report;
use crate::engine::sweeps;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, PodKey};
use crate::model::pool::Reason;
use crate::model::watched_object::{ObjectKind, WatchedObject};
use crate::plan::{self, Plan};

/// Pods often change in groups. Consolidation waits until nothing has changed for [`CALM`], at most
/// [`CALM_MAX`].
const CALM: SignedDuration = SignedDuration::from_secs(2);
const CALM_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Minimum interval between two runs. The interval doubles after each run that found nothing, up to
/// five minutes. It also grows with the number of nodes, because a run may take a second for
/// thousands.
const APART: SignedDuration = SignedDuration::from_secs(5);
const APART_DOUBLED_MAX: u32 = 6;

/// If this fraction of the pods (one in 50) has left its node, earlier runs that found nothing are
/// ignored.
const LEFT_MANY: usize = 50;
const APART_EACH: SignedDuration = SignedDuration::from_millis(10);

/// Events or timers start consolidation whenever a cheaper cluster becomes possible. If an event is
/// missed, consolidation still runs at this interval.
const REGULARLY: SignedDuration = SignedDuration::from_hours(1);

/// Maximum wait for nodes that are being disrupted together. The saving of a consolidation is not
/// known before they are drained.
const MOVING_MAX: SignedDuration = SignedDuration::from_secs(30);

impl ConsolidationSchedule {
    /// Records a change that may make a cheaper cluster possible.
    pub(super) fn mark_changed(&mut self, now: Timestamp) {
        let first = self.stirred.map_or(now, |(first, _)| first.min(now));
        self.stirred = Some((first, now));
    }

    /// Records that a sweep has started: earlier runs that found nothing are ignored.
    pub(super) fn mark_swept(&mut self, now: Timestamp) {
        self.vain = 0;
        self.mark_changed(now);
    }

    /// Records that a pod has left its node.
    fn record_removed_pod(&mut self, pods: usize) {
        self.left += 1;
        if self.left * LEFT_MANY >= pods {
            self.vain = 0;
        }
    }

    /// Returns the first time from `from` at which the cluster has not changed for a while.
    fn calm_after(&self, from: Timestamp) -> Timestamp {
        // The last moved pods may have just been bound.
        let from = self.waited.map_or(from, |at| from.max(time_after(at, CALM)));
        match self.stirred {
            Some((_, latest)) => from.max(time_after(latest, CALM).min(time_after(from, CALM_MAX))),
            None => from,
        }
    }

    /// Returns the time of the next run. It is delayed a little while the cluster changes, because
    /// an unfinished change looks like a cluster that can be consolidated.
    fn next_run_at(&self, nodes: usize) -> Timestamp {
        let first = self.stirred.map(|(first, _)| first);
        let Some(last) = self.last else {
            return first.map_or(Timestamp::MIN, |at| self.calm_after(at));
        };
        let nodes = i32::try_from(nodes).unwrap_or(i32::MAX);
        let each = APART_EACH.checked_mul(nodes).unwrap_or(REGULARLY);
        let doubled = APART * 2_i32.pow(self.vain.min(APART_DOUBLED_MAX));
        let [soonest, doubled] =
            [APART, doubled].map(|wait| time_after(last, wait.saturating_add(each)));
        let stirred = first.map(|at| at.max(doubled));
        // Earlier runs that found nothing do not delay a run at a known time: when a budget or a
        // window allows disruptions again, or a back-off ends.
        let opens = self.opens.map(|at| at.max(soonest));
        let ripens = self.ripens.map(|at| at.max(doubled));
        let times = [stirred, opens, ripens].into_iter().flatten();
        let sooner = times.map(|at| self.calm_after(at)).min();
        let regularly = time_after(last, REGULARLY);
        sooner.map_or(regularly, |at| at.min(regularly))
    }
}

impl Consolidation {
    /// Records events that may make a cheaper cluster possible. Pods change often, but rarely in
    /// their node, labels, annotations or requests.
    pub(super) fn note_changes(&mut self, cx: &Context, event: &Event, now: Timestamp) {
        let objects = &cx.state.objects;
        let stirs = match event {
            Event::Applied(WatchedObject::Pod(pod)) => {
                !objects.pods.get(&pod.key).is_some_and(|known| {
                    known.node == pod.node
                        && known.is_terminal() == pod.is_terminal()
                        && known.deleting.is_some() == pod.deleting.is_some()
                        && known.labels == pod.labels
                        && known.annotations == pod.annotations
                        && known.requests == pod.requests
                })
            }
            Event::Applied(WatchedObject::Node(node)) => {
                !objects.nodes.get(&node.name).is_some_and(|known| {
                    known.taints == node.taints
                        && known.labels == node.labels
                        && known.annotations == node.annotations
                        && known.allocatable == node.allocatable
                })
            }
            Event::Deleted(ObjectKind::Pod, _) => {
                self.schedule.record_removed_pod(objects.pods.len());
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
            self.schedule.mark_changed(now);
        }
    }

    /// Returns until when to wait for nodes that are disrupted together and have pods to move.
    fn wait_for_moves_until(&self, cx: &Context, now: Timestamp) -> Option<Timestamp> {
        if cx.waves.is_active() {
            return Some(time_after(now, CALM));
        }
        let until = time_after(self.schedule.moved?, MOVING_MAX);
        let moves = cx.state.ledger.claims.values().any(|claim| {
            claim.leaving == Some(Reason::Underutilized) && claim.phase == ClaimPhase::Draining
        });
        Some(until).filter(|at| moves && *at > now)
    }

    /// Cancels the disruption of nodes whose pods no longer fit on other nodes, if a new node for
    /// these pods would cost too much of the saving. Returns whether any disruption was cancelled,
    /// which makes the plan invalid.
    pub(super) fn keep_needed_nodes(
        &mut self,
        cx: &mut Context,
        plan: &Plan,
        now: Timestamp,
    ) -> bool {
        let unplaced = plan.unplaced.iter().map(|unplaced| (&unplaced.pod, f64::INFINITY));
        let launched = plan.launches.iter().flat_map(|launch| {
            let each = consolidation_feedback::cost_per_pod(cx, launch);
            launch.pods.iter().map(move |pod| (pod, each))
        });
        let unplaced_costs: BTreeMap<&PodKey, f64> = launched.chain(unplaced).collect();
        if unplaced_costs.is_empty() {
            return false;
        }
        let leaving = cx.state.ledger.claims.iter().filter(|(id, claim)| {
            claim.leaving == Some(Reason::Underutilized) && !waves::may_evict(cx, id)
        });
        let mut needed: Vec<ClaimId> = Vec::new();
        let mut costs: Vec<(ClaimId, f64)> = Vec::new();
        for (id, claim) in leaving {
            let reschedulable = cx.state.reschedulable_of(claim, now);
            let cost: f64 = reschedulable.filter_map(|pod| unplaced_costs.get(&pod.key)).sum();
            if cost > self.max_replacement_cost(id) {
                needed.push(id.clone());
            } else if cost > 0.0 {
                costs.push((id.clone(), cost));
            }
        }
        for id in &needed {
            cancellation::cancel_drain(
                cx,
                self,
                id,
                "its pods can no longer be scheduled elsewhere".to_owned(),
                now,
            );
        }
        if needed.is_empty() {
            for (id, cost) in costs {
                self.reduce_saving(&id, cost);
            }
        }
        !needed.is_empty()
    }
}

/// Runs consolidation and starts the disruption of the selected nodes. Consolidation does not run
/// while pending pods are unplanned.
pub(super) fn consolidate(
    cx: &mut Context,
    provisioning: &mut Provisioning,
    consolidation: &mut Consolidation,
    lease: &mut LeaseSync,
    interruptions: &Interruptions,
    now: Timestamp,
) {
    let due = consolidation.schedule.next_run_at(cx.state.objects.nodes.len());
    if cx.outbox.waits_until(due, "run consolidation", now) {
        return;
    }
    let planned = cx.batcher.next_plan_at(&cx.state.cluster.batching);
    let waits = cx.batcher.has_unplanned_pods() || planned.is_some_and(|at| at <= now);
    if waits || cx.state.ledger.claims.is_empty() {
        return;
    }
    if let Some(at) = consolidation.wait_for_moves_until(cx, now) {
        consolidation.schedule.waited = Some(now);
        cx.outbox.wake_at(at, "nodes disrupted together should be terminated by now");
        return;
    }
    consolidation.update_backoffs(cx, now);
    cx.state.sweeps.expire_requests(now);
    let mut plan = plan::consolidate(&cx.state.disruption_view(now), &cx.state.what_if(now), now);
    provisioning::report_blocked_disruptions(cx, lease, &plan, true);
    provisioning.report_eligible(cx, &plan, &[Reason::Underutilized]);
    sweeps::record_consolidation_result(cx, &plan, now);
    let braked = plan.kept.iter().filter(|node| node.verdict.is_safeguard());
    let opens = braked.filter_map(|node| node.verdict.ends_at());
    let opens = opens.chain(cx.state.next_available_at(now));
    let ripens = plan::next_due(&plan.kept).into_iter().chain(plan.takes_again);
    consolidation.schedule = ConsolidationSchedule {
        last: Some(now),
        opens: opens.filter(|at| *at > now).min(),
        vain: if plan.retire.is_empty() {
            consolidation.schedule.vain.saturating_add(1)
        } else {
            0
        },
        left: 0,
        stirred: None,
        ripens: ripens.filter(|at| *at > now).min(),
        waited: None,
        ..consolidation.schedule
    };
    provisioning.retained_nodes.record_consolidation(&mut plan);
    let next = consolidation.schedule.next_run_at(cx.state.objects.nodes.len());
    cx.outbox.wake_at(next, "run consolidation");
    if plan.retire.is_empty() {
        return;
    }
    let nodes = &plan.retire;
    let mut claims = nodes.iter().filter_map(|node| node.claim.as_ref());
    if claims.all(|claim| provisioning.observed_leaving.contains(claim)) {
        return;
    }
    consolidation.schedule.moved = Some(now);
    cx.outbox.push_report(Report::Consolidates {
        pools: nodes.iter().map(|node| node.pool.clone()).collect(),
        nodes: nodes.len(),
        claims: plan.launches.len(),
        before: nodes.iter().filter_map(|node| node.price).sum(),
        after: plan::lowest_total_price(&plan.launches),
    });
    carry_out_consolidation(cx, provisioning, consolidation, interruptions, plan, now);
}

/// Disrupts the nodes of a plan and launches their replacements. In observe mode it only
/// reports them.
fn carry_out_consolidation(
    cx: &mut Context,
    provisioning: &mut Provisioning,
    consolidation: &mut Consolidation,
    interruptions: &Interruptions,
    plan: Plan,
    now: Timestamp,
) {
    if !cx.is_managing() {
        report_possible_moves(cx, provisioning, plan);
        return;
    }
    consolidation.record_expected_savings(&plan, now);
    for claim in plan.retire.iter().filter_map(|node| node.claim.as_ref()) {
        drain::disrupt_node(cx, interruptions, claim, Reason::Underutilized, now);
    }
    cx.placements.add_partial_plan(&plan);
    provisioning.carry_out_plan(cx, plan, Reason::Underutilized.as_str(), now);
    // The places of the moved pods are known, so these pods are not planned again.
    let waiting = cx.state.waiting_pods(now);
    let waiting: Vec<&PodKey> = waiting.into_iter().map(|pod| &pod.key).collect();
    cx.batcher.observe_pending(&waiting, now);
    cx.batcher.record_plan(now);
}

/// Reports the nodes that would be disrupted and their replacements.
fn report_possible_moves(cx: &mut Context, provisioning: &mut Provisioning, plan: Plan) {
    for node in plan.retire {
        if let Some(claim) = node.claim.clone() {
            provisioning.report_possible_disruption(cx, claim, node);
        }
    }
    for launch in plan.launches {
        let Some((offering, price)) = launch.offerings.first().cloned() else {
            continue;
        };
        let claim = ClaimId::from(claims::new_random_id(cx));
        cx.outbox.push_report(Report::ClaimPlanned {
            claim,
            pool: launch.pool,
            offering,
            price,
            offerings: launch.offerings.len(),
            reason: Reason::Underutilized.as_str(),
            relaxed: false,
            pods: launch.pods,
        });
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

    /// Checks when the next run is due, in seconds after the last one, for a cluster without nodes.
    fn check(change: impl FnOnce(&mut ConsolidationSchedule), expect: i64) {
        let mut schedule =
            ConsolidationSchedule { last: Some(NOW), ..ConsolidationSchedule::default() };
        change(&mut schedule);
        let due = schedule.next_run_at(0).duration_since(NOW).as_secs();
        assert_eq!(due, expect, "{schedule:?}");
    }

    #[test]
    fn consolidation_runs_when_the_cluster_is_calm_and_not_too_often() {
        let mark_changed = |schedule: &mut ConsolidationSchedule, all: &[i64]| {
            all.iter().for_each(|it| schedule.mark_changed(at(*it)))
        };
        check(|_| {}, 3600);
        check(|schedule| mark_changed(schedule, &[1]), 5);
        check(|schedule| mark_changed(schedule, &[1, 4]), 6);
        check(|schedule| mark_changed(schedule, &[100]), 102);
        check(|schedule| mark_changed(schedule, &(1..100).collect::<Vec<_>>()), 35);
        let vain = |schedule: &mut ConsolidationSchedule| schedule.vain = 3;
        check(|schedule| (vain(schedule), mark_changed(schedule, &[1])).1, 40);
        // A known future event is not delayed.
        let opens = |schedule: &mut ConsolidationSchedule, it| schedule.opens = Some(at(it));
        check(|schedule| (vain(schedule), opens(schedule, 7)).1, 7);
        check(|schedule| (opens(schedule, 100), mark_changed(schedule, &[99])).1, 101);
        // Nothing changes meanwhile, so there is no wait.
        let ripens = |schedule: &mut ConsolidationSchedule, it| schedule.ripens = Some(at(it));
        check(|schedule| (opens(schedule, 100), ripens(schedule, 1000)).1, 100);
        check(|schedule| (vain(schedule), ripens(schedule, 7)).1, 40);
        // The run was postponed until then: the moved pods have just been bound.
        let waited = |schedule: &mut ConsolidationSchedule, it| schedule.waited = Some(at(it));
        check(|schedule| (mark_changed(schedule, &[1, 70]), waited(schedule, 70)).1, 72);
        check(|schedule| (mark_changed(schedule, &[1, 71]), waited(schedule, 70)).1, 73);
        // Before the first run only the calm period counts.
        let mut new = ConsolidationSchedule::default();
        assert_eq!(new.next_run_at(0), Timestamp::MIN);
        new.mark_changed(NOW);
        assert_eq!(new.next_run_at(0), at(2));
    }
}
