//! Decides when to plan, and turns plans into claims and drains.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::disruption::expiry;
use crate::disruption::verdict::Verdict;
use crate::engine::Engine;
use crate::engine::batcher::Closes;
use crate::engine::report::Report;
use crate::model::buffer::buffer_of;
use crate::model::claim::{ClaimPhase, ClaimRecord};
use crate::model::id::{ClaimId, NodeName, PodKey};
use crate::model::instance::{OfferingKey, Price};
use crate::model::pod::{Pod, PodPhase};
use crate::model::pool::Reason;
use crate::model::template_hash::record_in;
use crate::plan::{self, Plan, PlannedTermination};
use crate::scheduling::{NewNodeClaim, UnschedulablePod};
use crate::state::node_claims::NodeClaim;
use crate::state::nominations::NOMINATED;
use crate::state::snapshot::NodeRef;

/// Minimum interval between two sweeps.
const SWEEP_APART: SignedDuration = SignedDuration::from_secs(1);

/// Buffers are read within seconds of a start. If reading them fails for this long, empty nodes are
/// disrupted anyway, because they cost money meanwhile.
const UNREAD_MAX: SignedDuration = SignedDuration::from_mins(5);

/// Length of a claim's ID: 13 characters of 5 bits are 65 bits, so collisions are negligible.
const CLAIM_ID_LENGTH: usize = 13;

impl Engine {
    /// Disrupts nodes that are due.
    pub(super) fn disrupt_due_nodes(&mut self, now: Timestamp) {
        self.sweep_due = None;
        if self.state.ledger.claims.is_empty() {
            return;
        }
        if self.next_sweep.is_some_and(|at| at > now) {
            self.sweep_due = self.next_sweep;
            return;
        }
        self.next_sweep = now.checked_add(SWEEP_APART).ok();
        self.check_changed_configuration(now);
        let disruption_view = self.state.disruption_view(now);
        let mut plan = plan::select_disruptions(&disruption_view, now);
        let reported = std::mem::replace(&mut self.misreads, disruption_view.misreads);
        let news = self.misreads.difference(&reported).cloned();
        self.reports.extend(news.map(Report::Misread));
        self.check_cluster_health(plan.ailing, now);
        if let Some(until) = self.unread_until(now) {
            plan.retire.retain(|termination| termination.reason != Reason::Empty);
            self.wake_at(until, "empty nodes can be disrupted without the buffers");
        }
        let empty = plan.retire.iter().any(|termination| {
            let claim = termination.claim.as_ref();
            let is_news = claim.is_some_and(|id| !self.observed_leaving.contains(id));
            termination.reason == Reason::Empty && is_news
        });
        if empty && self.state.buffers().next().is_some() {
            // The last plan may be out of date.
            self.state.held = plan::provision(&self.state.snapshot(now), now).held;
            plan = plan::select_disruptions(&self.state.disruption_view(now), now);
        }
        if let Some(due) = plan::next_due(&plan.kept) {
            self.wake_at(due, "a node may have been empty or unhealthy for long enough");
        }
        self.wake_at(self.next_age(now), "a node has expired");
        self.report_blocked_disruptions(&plan, false);
        self.report_eligible(&plan, &[Reason::Empty, Reason::Drifted, Reason::Expired]);
        self.stays.record_sweep(&mut plan);
        for claim in plan.cancel {
            self.disrupt_node(&claim, Reason::Surplus, now);
        }
        for retire in plan.retire {
            let Some(claim) = retire.claim.clone() else {
                continue;
            };
            let needed = self.replacements.needed_until(&claim, now);
            if let Some(until) = needed.filter(|_| retire.reason == Reason::Empty) {
                self.wake_at(until, "pods are expected on an empty node");
                continue;
            }
            if let Some(why) = retire.cause.filter(|_| !self.observed_leaving.contains(&claim)) {
                let node = retire.node.clone();
                self.push_report(Report::Drifted { node, why });
            }
            if self.is_managing() {
                self.disrupt_node(&claim, retire.reason, now);
            } else {
                self.report_possible_disruption(claim, retire);
            }
        }
    }

    /// In observe mode, reports once that a node would be disrupted.
    pub(super) fn report_possible_disruption(
        &mut self,
        claim: ClaimId,
        termination: PlannedTermination,
    ) {
        if self.observed_leaving.insert(claim.clone()) {
            self.push_report(Report::Retire {
                pool: self.state.ledger.pool_of(&claim),
                claim,
                node: Some(termination.node),
                reason: termination.reason,
                price: termination.price,
                pods: termination.pods,
            });
        }
    }

    /// Reports the number of nodes eligible for each of these reasons.
    pub(super) fn report_eligible(&mut self, plan: &Plan, reasons: &[Reason]) {
        for reason in reasons {
            let nodes = plan.eligible_nodes(*reason);
            if self.eligible.insert(*reason, nodes).unwrap_or(0) != nodes {
                let reason = *reason;
                self.push_report(Report::Eligible { reason, nodes });
            }
        }
    }

    /// Returns when the next node reaches its maximum age.
    fn next_age(&self, now: Timestamp) -> Option<Timestamp> {
        let claims = self.state.ledger.claims.values();
        let aged = claims.filter_map(|claim| expiry::claim_expiry(&claim.record));
        aged.filter(|at| *at > now).min()
    }

    /// Reports due nodes, and nodes that consolidation would disrupt, if their disruption is
    /// blocked until a certain time or an approval. Each pool, reason and kind of verdict is
    /// reported once.
    pub(super) fn report_blocked_disruptions(&mut self, plan: &Plan, is_weighed: bool) {
        let mut blocked = BTreeMap::new();
        for kept in plan.kept.iter().filter(|kept| kept.verdict.is_reported(kept.reason)) {
            let node = self.state.objects.nodes.get(&kept.node);
            let Some(pool) = node.and_then(|node| node.pool_name()) else {
                continue;
            };
            let key = (pool, kept.reason, kept.verdict.code());
            blocked.entry(key).or_insert_with(|| match kept.verdict {
                Verdict::Blocked(_) => format!("node {}: {}", kept.node, kept.verdict),
                _ => kept.verdict.to_string(),
            });
        }
        for (pool, reason, why) in self.noting.new_blocked_disruptions(blocked, is_weighed) {
            self.push_report(Report::Shut { pool, reason, why });
        }
    }

    /// Returns until when empty nodes are kept because the buffers that may need them are unread.
    pub(super) fn unread_until(&self, now: Timestamp) -> Option<Timestamp> {
        let started = self.state.started.filter(|_| self.state.declared.is_none());
        let until = started.and_then(|at| at.checked_add(UNREAD_MAX).ok());
        until.filter(|until| *until > now)
    }

    /// Plans capacity for pending pods after their batch window, and for static pools that lack
    /// nodes.
    pub(super) fn provision_pods(&mut self, now: Timestamp) {
        let waiting = self.state.waiting_pods(now);
        let waiting: Vec<&PodKey> = waiting.into_iter().map(|pod| &pod.key).collect();
        self.batch.observe_pending(&waiting, now);
        self.batch.set_closes(self.batch_closes(now));
        let release = self.state.next_nomination_end(now);
        self.wake_at(release, "pods are no longer expected on a node");
        let lacking = self.state.missing_static_nodes();
        let numbers = self.numbers.next_plan_at(&lacking);
        let pods = self.batch.next_plan_at(&self.state.cluster.batching);
        if pods.is_none() && !std::mem::take(&mut self.told).is_empty() {
            self.push_report(Report::AllAnswered);
        }
        // Pending pods are planned first, and soon.
        let room = self.numbers.next_buffer_plan_at(&self.state);
        let Some(due) = pods.or(room).into_iter().chain(numbers).min() else {
            let ended = self.numbers.end_all_shortfalls();
            self.reports.extend(ended.into_iter().map(Report::Enough));
            return;
        };
        if self.waits_until(due, "plan nodes", now) {
            return;
        }
        if let Some(at) = self.denied_until(now) {
            self.wake_at(at, "request a grant of the fleet again");
            return;
        }
        let whole = pods.or(room).is_some_and(|at| at <= now);
        let (pending, mut plan, waits) = self.plan_round(whole, now);
        if self.keep_needed_nodes(&plan, now) {
            // The other pods have no place before the next plan.
            self.batch.plan_again_at(now);
            self.wake_at(now, "pods keep their nodes");
            return;
        }
        if whole {
            self.report_decision_time(now);
        }
        if !self.is_managing() && !self.numbers.has_changed(&lacking) {
            plan.launches.retain(|launch| !launch.pods.is_empty());
        }
        let changed = whole && self.report_unplaced(&plan);
        self.report_round(pending, changed, whole, &plan);
        if self.is_managing() {
            self.attribute_losses(&plan, now);
        }
        if whole {
            self.state.held.clone_from(&plan.held);
            self.places.record_plan(&plan);
            self.buffer_statuses.record_plan(std::mem::take(&mut plan.room));
            self.numbers.record_buffer_plan(&self.state, now);
        }
        self.carry_out_plan(plan, "provisioned", now);
        // The following plan reports why the remaining pods are unschedulable.
        if waits {
            self.batch.plan_again_at(now);
        }
        let lacking = self.state.missing_static_nodes();
        self.numbers.record_plan(lacking.clone(), now);
        let next_pods = self.batch.next_plan_at(&self.state.cluster.batching);
        let next_pods = next_pods.or(self.numbers.next_buffer_plan_at(&self.state));
        if let Some(next) = next_pods.into_iter().chain(self.numbers.next_plan_at(&lacking)).min() {
            self.wake_at(next, "pods are pending, or buffers and static pools are due");
        }
    }

    /// Returns when the batch window of the current pods closes.
    fn batch_closes(&self, now: Timestamp) -> Closes {
        let idle = self.state.cluster.batching.idle;
        if self.drains_interrupted(now) {
            Closes::Soon
        } else if self.state.is_scheduler_behind(idle, now) {
            Closes::AtMax
        } else {
            Closes::WhenIdle
        }
    }

    /// Plans static pools, and also pending pods if `whole`. Returns the number of these pods, the
    /// plan, and whether launches were dropped because of a test node.
    fn plan_round(&mut self, whole: bool, now: Timestamp) -> (usize, Plan, bool) {
        let tried = self.include_test_zones();
        let mut snapshot = self.state.snapshot(now);
        if !whole {
            snapshot.pending.clear();
            snapshot.spare.pods.clear();
        }
        let pending = snapshot.pending.len();
        let mut plan = plan::provision(&snapshot, now);
        self.exclude_untried_zones(now);
        let waits = self.keep_one_test_launch(&mut plan, &tried);
        (pending, plan, waits)
    }

    /// Records that all pending pods were planned.
    fn report_decision_time(&mut self, now: Timestamp) {
        let waited = self.batch.record_plan(now);
        if !waited.is_empty() {
            self.push_report(Report::Decided(waited));
        }
    }

    /// Compares a changed pod with its known state, before the change is applied.
    pub(super) fn before_pod_change(&mut self, pod: &Pod, now: Timestamp) {
        self.observe_pod(pod, now);
        self.report_pod_start(pod, now);
        self.state.on_pod_observed(pod);
    }

    /// Reports the startup time of a pod, if this change shows it running.
    fn report_pod_start(&mut self, pod: &Pod, now: Timestamp) {
        let known = self.state.objects.pods.get(&pod.key);
        let waited =
            known.is_some_and(|known| known.uid == pod.uid && known.phase == PodPhase::Pending);
        let made = pod.created.filter(|_| waited && pod.phase == PodPhase::Running);
        if let Some(at) = made {
            self.push_report(Report::PodStarted(now.duration_since(at)));
        }
    }

    /// Reports unschedulable pods. Returns whether they changed.
    fn report_unplaced(&mut self, plan: &Plan) -> bool {
        let mut changed = false;
        let mut reported = BTreeMap::new();
        for unplaced in &plan.unplaced {
            let UnschedulablePod { pod, reasons } = unplaced;
            if self.told.get(pod) != Some(reasons) {
                changed = true;
                self.push_report(Report::Unplaced(unplaced.clone()));
            }
            reported.insert(pod.clone(), reasons.clone());
        }
        // Pods that are no longer unschedulable are only counted.
        changed |= self.told.keys().any(|pod| !reported.contains_key(pod));
        self.told = reported;
        changed
    }

    fn report_round(&mut self, pending: usize, changed: bool, whole: bool, plan: &Plan) {
        let (short, ended) = self.numbers.update_shortfalls(&plan.short, whole);
        self.reports.extend(short.into_iter().map(Report::Short));
        self.reports.extend(ended.into_iter().map(Report::Enough));
        for finding in &plan.findings {
            self.push_report(Report::Failed {
                command: "plan",
                kind: crate::engine::command::FailureKind::Invalid,
                text: finding.clone(),
            });
        }
        if changed || !plan.launches.is_empty() {
            let price: f64 = plan
                .launches
                .iter()
                .filter_map(cheapest_offering)
                .map(|(_, price)| price.usd_per_h())
                .sum();
            self.push_report(Report::Planned {
                pending,
                placed: plan.placed.iter().map(|(_, pods)| pods.len()).sum(),
                claims: plan.launches.len(),
                unplaced: plan.unplaced.len(),
                price: Price::new(price).unwrap_or_default(),
            });
        }
    }

    pub(super) fn carry_out_plan(&mut self, plan: Plan, reason: &str, now: Timestamp) {
        let until = now.checked_add(NOMINATED).unwrap_or(now);
        // Places in earlier plans are no longer valid.
        let planned = plan.scheduled_pods();
        let claims = self.state.ledger.claims.values_mut();
        claims.for_each(|claim| claim.pods.retain(|pod| !planned.contains(pod)));
        for (host, pods) in plan.placed {
            match host {
                NodeRef::Node(node) => {
                    self.record_planned_pods(&node, pods, now);
                    self.state.nominate(node, until);
                }
                NodeRef::Claim(id) => {
                    if let Some(claim) = self.state.ledger.claims.get_mut(&id) {
                        claim.pods.extend(pods);
                    }
                }
            }
        }
        let command_id = self.new_random_id();
        for launch in plan.launches {
            self.plan_claim(launch, reason, &command_id, now);
        }
        self.wake_at(now, "claims are planned");
    }

    /// Records that pods were planned onto a node. A node that is still tainted is treated like a
    /// claim: all its pods are nominated. On an untainted node only pods that run elsewhere are
    /// recorded. The others are bound immediately or not at all, and must not be planned again
    /// repeatedly.
    fn record_planned_pods(&mut self, node: &NodeName, pods: Vec<PodKey>, now: Timestamp) {
        let reschedulable = pods.iter().filter(|key| {
            let pod = self.state.objects.pods.get(*key);
            pod.is_some_and(|pod| self.state.is_reschedulable(pod, now))
        });
        let reschedulable: Vec<PodKey> = reschedulable.cloned().collect();
        let mut claims = self.state.ledger.claims.values_mut();
        let Some(claim) = claims.find(|claim| claim.node.as_ref() == Some(node)) else {
            return;
        };
        let closed = claim.phase < ClaimPhase::Initialized;
        claim.pods.extend(if closed { pods } else { reschedulable });
    }

    fn plan_claim(
        &mut self,
        mut launch: NewNodeClaim,
        reason: &str,
        command_id: &str,
        now: Timestamp,
    ) {
        let Some(pool) = self.state.cluster.pool(launch.pool.as_str()) else {
            return;
        };
        let Some((offering, price)) = cheapest_offering(&launch).cloned() else {
            return;
        };
        let mut record = record_in(&self.state.cluster, pool, "", now, reason, command_id);
        record.origin = self.state.claim_origin();
        let id = ClaimId::from(self.new_random_id());
        // In observe mode nothing is launched, so the same pods are planned repeatedly. They are
        // reported once.
        let pods = launch.pods.iter();
        let fresh =
            launch.pods.is_empty() || pods.clone().any(|pod| !self.observed_pods.contains(pod));
        if !self.is_managing() {
            self.observed_pods.extend(pods.cloned());
        }
        // Virtual pods of buffers do not exist.
        launch.pods.retain(|pod| buffer_of(pod).is_none());
        let report = Report::ClaimPlanned {
            claim: id.clone(),
            pool: launch.pool.clone(),
            offering,
            price,
            offerings: launch.offerings.len(),
            pods: launch.pods.clone(),
        };
        if fresh || self.is_managing() {
            self.push_report(report);
        }
        if !self.is_managing() {
            return;
        }
        let mut claim = NodeClaim::new(ClaimRecord { id, ..record }, ClaimPhase::Planned, now);
        let offerings = launch.offerings.into_iter();
        claim.offerings = offerings.map(|(offering, _)| offering).collect();
        claim.labels = launch.labels;
        claim.pods = launch.pods.into_iter().collect();
        self.state.ledger.insert(claim);
    }

    /// Returns an ID that no claim has used.
    pub(super) fn new_random_id(&mut self) -> String {
        const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        (0..CLAIM_ID_LENGTH).map(|_| char::from(ALPHABET[self.rng.usize(0..32)])).collect()
    }
}

fn cheapest_offering(claim: &NewNodeClaim) -> Option<&(OfferingKey, Price)> {
    claim.offerings.first()
}
