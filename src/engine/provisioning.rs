//! Decides when to plan, and turns plans into claims and drains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::disruption::expiry;
use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::engine::batcher::Closes;
use crate::engine::buffer_status::BufferStatuses;
use crate::engine::claim_steps;
use crate::engine::claims;
use crate::engine::context::Context;
use crate::engine::controllers::{Consolidation, Interruptions};
use crate::engine::drain;
use crate::engine::fleet_sync::FleetSync;
use crate::engine::lease_annotations::LeaseSync;
use crate::engine::registration_backoff;
use crate::engine::report::Report;
use crate::engine::safeguards;
use crate::engine::sweeps;
use crate::engine::sync;
use crate::model::buffer::buffer_of;
use crate::model::claim::{ClaimPhase, ClaimRecord};
use crate::model::id::{ClaimId, NodeName, PodKey, PoolName};
use crate::model::instance::{OfferingKey, Price};
use crate::model::pod::{Pod, PodPhase};
use crate::model::pool::Reason;
use crate::model::template_hash::record_in;
use crate::plan::{self, Plan, PlannedTermination};
use crate::scheduling::{NewNodeClaim, PoolRejection, UnschedulablePod};
use crate::state::disruption_blockers::InvalidInput;
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot::NodeRef;
use crate::state::sweeps::DueSweeps;

/// Plans for pending pods and static pools, and checks of all nodes.
#[derive(Debug, Default)]
pub(super) struct Provisioning {
    pub(super) rejections: BTreeMap<PodKey, Arc<[PoolRejection]>>,
    pub(super) invalid_inputs: BTreeSet<InvalidInput>,
    pub(super) observed_pods: BTreeSet<PodKey>,
    /// Nodes that the last passes kept, with the reasons. Shown in the inventory.
    pub(super) retained_nodes: RetainedNodes,
    /// Number of nodes eligible for disruption by reason, before budgets, pauses and windows.
    pub(super) eligible: BTreeMap<Reason, usize>,
    /// Number of nodes of each pool that its budgets count, and how many of them are disrupted, at
    /// the last check.
    pub(super) budget_counts: BTreeMap<PoolName, (usize, usize)>,
    /// When the next check of all nodes is allowed, and when it is due if something has changed
    /// since the last one.
    pub(super) next_check: Option<Timestamp>,
    pub(super) check_due: Option<Timestamp>,
    pub(super) observed_leaving: BTreeSet<ClaimId>,
    /// When the next full pass is due if no event arrives before.
    pub(super) full_pass_due: Option<Timestamp>,
    /// When the last full pass ran.
    pub(super) last_full_pass: Option<Timestamp>,
}

/// Minimum interval between two checks of all nodes.
const CHECK_APART: SignedDuration = SignedDuration::from_secs(1);

impl Provisioning {
    /// Returns whether the last check of all nodes is too recent for another one.
    pub(super) fn check_is_too_early(&self, cx: &Context, now: Timestamp) -> bool {
        !cx.state.ledger.claims.is_empty() && self.next_check.is_some_and(|at| at > now)
    }

    /// In observe mode, reports once that a node would be disrupted.
    pub(super) fn report_possible_disruption(
        &mut self,
        cx: &mut Context,
        claim: ClaimId,
        termination: PlannedTermination,
    ) {
        if self.observed_leaving.insert(claim.clone()) {
            cx.outbox.push_report(Report::Retire {
                pool: cx.state.ledger.pool_of(&claim),
                claim,
                node: Some(termination.node),
                capacity_type: None,
                reason: termination.reason,
                price: termination.price,
                pods: termination.pods,
            });
        }
    }

    /// Reports the number of nodes that are eligible for disruption for each of these reasons.
    pub(super) fn report_eligible(&mut self, cx: &mut Context, plan: &Plan, reasons: &[Reason]) {
        for reason in reasons {
            let nodes = plan.eligible_nodes(*reason);
            if self.eligible.insert(*reason, nodes).unwrap_or(0) != nodes {
                let reason = *reason;
                cx.outbox.push_report(Report::Eligible { reason, nodes });
            }
        }
    }

    /// Reports unschedulable pods. Returns whether they changed.
    fn report_unplaced(&mut self, cx: &mut Context, plan: &Plan) -> bool {
        let mut changed = false;
        let mut reported = BTreeMap::new();
        for unplaced in &plan.unplaced {
            let UnschedulablePod { pod, reasons } = unplaced;
            if self.rejections.get(pod) != Some(reasons) {
                changed = true;
                cx.outbox.push_report(Report::Unplaced(unplaced.clone()));
            }
            reported.insert(pod.clone(), reasons.clone());
        }
        // Pods that are no longer unschedulable are a change, but are not reported.
        changed |= self.rejections.keys().any(|pod| !reported.contains_key(pod));
        self.rejections = reported;
        changed
    }

    pub(super) fn carry_out_plan(
        &mut self,
        cx: &mut Context,
        plan: Plan,
        reason: &'static str,
        now: Timestamp,
    ) {
        let until = now.checked_add(cx.state.node_nomination()).unwrap_or(now);
        // Places in earlier plans are no longer valid.
        let planned = plan.scheduled_pods();
        let claims = cx.state.ledger.claims.values_mut();
        claims.for_each(|claim| claim.pods.retain(|pod| !planned.contains(pod)));
        for (host, pods) in plan.placed {
            match host {
                NodeRef::Node(node) => {
                    record_planned_pods(cx, &node, pods, now);
                    cx.state.nominate(node, until);
                }
                NodeRef::Claim(id) => {
                    if let Some(claim) = cx.state.ledger.claims.get_mut(&id) {
                        claim.pods.extend(pods);
                    }
                }
            }
        }
        claim_steps::forget_launch_retries(cx, now);
        let command_id = claims::new_random_id(cx);
        for launch in plan.launches {
            self.plan_claim(cx, launch, reason, &command_id, now);
        }
        cx.outbox.wake_at(now, "claims are planned");
    }

    fn plan_claim(
        &mut self,
        cx: &mut Context,
        mut launch: NewNodeClaim,
        reason: &'static str,
        command_id: &str,
        now: Timestamp,
    ) {
        let Some(pool) = cx.state.cluster.pool(launch.pool.as_str()) else {
            return;
        };
        let Some((offering, price)) = cheapest_offering(&launch).cloned() else {
            return;
        };
        let offerings = launch.offerings.iter().map(|(offering, _)| offering);
        let relaxed = claims::is_relaxed(cx, pool, offerings);
        let mut record = record_in(&cx.state.cluster, pool, "", now, reason, command_id);
        record.origin = cx.state.claim_origin();
        let id = ClaimId::from(claims::new_random_id(cx));
        // In observe mode nothing is launched, so the same pods are planned repeatedly. Such pods
        // are reported once.
        let pods = launch.pods.iter();
        let fresh =
            launch.pods.is_empty() || pods.clone().any(|pod| !self.observed_pods.contains(pod));
        if !cx.is_managing() {
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
            reason,
            relaxed,
            pods: launch.pods.clone(),
        };
        if fresh || cx.is_managing() {
            cx.outbox.push_report(report);
        }
        if !cx.is_managing() {
            return;
        }
        let mut claim = NodeClaim::new(ClaimRecord { id, ..record }, ClaimPhase::Planned, now);
        let offerings = launch.offerings.into_iter();
        claim.offerings = offerings.map(|(offering, _)| offering).collect();
        claim.labels = launch.labels;
        cx.progress_of(&claim.record.id).retry = claim_steps::launch_retry(cx, &launch.pods);
        claim.pods = launch.pods.into_iter().collect();
        cx.state.ledger.insert(claim);
    }
}

/// Plans capacity for pending pods after their batch window, and for static pools that lack
/// nodes.
pub(super) fn provision_pods(
    cx: &mut Context,
    provisioning: &mut Provisioning,
    consolidation: &mut Consolidation,
    fleet: &FleetSync,
    interruptions: &Interruptions,
    buffer_statuses: &mut BufferStatuses,
    now: Timestamp,
) {
    let waiting = cx.state.waiting_pods(now);
    let waiting: Vec<&PodKey> = waiting.into_iter().map(|pod| &pod.key).collect();
    cx.batcher.observe_pending(&waiting, now);
    cx.batcher.set_closes(batch_closes(cx, interruptions, now));
    let release = cx.state.next_nomination_end(now);
    cx.outbox.wake_at(release, "pods are no longer expected on a node");
    let lacking = cx.state.missing_static_nodes();
    let numbers = cx.static_schedule.next_plan_at(&lacking);
    let pods = cx.batcher.next_plan_at(&cx.state.cluster.batching);
    if pods.is_none() && !std::mem::take(&mut provisioning.rejections).is_empty() {
        cx.outbox.push_report(Report::AllAnswered);
    }
    // Buffers are planned with the pending pods, or alone if no pods are pending.
    let room = cx.static_schedule.next_buffer_plan_at(&cx.state);
    let Some(due) = pods.or(room).into_iter().chain(numbers).min() else {
        let ended = cx.static_schedule.end_all_shortfalls();
        cx.outbox.reports.extend(ended.into_iter().map(Report::Enough));
        return;
    };
    if cx.outbox.waits_until(due, "plan nodes", now) {
        return;
    }
    if let Some(at) = fleet.denied_until(now) {
        cx.outbox.wake_at(at, "request a grant of the fleet again");
        return;
    }
    let whole = pods.or(room).is_some_and(|at| at <= now);
    let (pending, mut plan, waits) = plan_round(cx, whole, now);
    if consolidation.keep_needed_nodes(cx, &plan, now) {
        // This plan is discarded, so the pods are planned again immediately.
        cx.batcher.plan_again_at(now);
        cx.outbox.wake_at(now, "pods keep their nodes");
        return;
    }
    if whole {
        report_decision_time(cx, now);
    }
    if !cx.is_managing() && !cx.static_schedule.has_changed(&lacking) {
        plan.launches.retain(|launch| !launch.pods.is_empty());
    }
    let changed = whole && provisioning.report_unplaced(cx, &plan);
    report_round(cx, pending, changed, whole, &plan);
    if cx.is_managing() {
        consolidation.attribute_losses(cx, &plan, now);
    }
    if whole {
        cx.state.held.clone_from(&plan.held);
        cx.placements.record_plan(&plan);
        buffer_statuses.record_plan(std::mem::take(&mut plan.room));
        cx.static_schedule.record_buffer_plan(&cx.state, now);
    }
    provisioning.carry_out_plan(cx, plan, "provisioned", now);
    // The following plan reports why the remaining pods are unschedulable.
    if waits {
        cx.batcher.plan_again_at(now);
    }
    let lacking = cx.state.missing_static_nodes();
    cx.static_schedule.record_plan(lacking.clone(), now);
    let next_pods = cx.batcher.next_plan_at(&cx.state.cluster.batching);
    let next_pods = next_pods.or(cx.static_schedule.next_buffer_plan_at(&cx.state));
    if let Some(next) = next_pods.into_iter().chain(cx.static_schedule.next_plan_at(&lacking)).min()
    {
        cx.outbox.wake_at(next, "pods are pending, or buffers and static pools are due");
    }
}

/// Disrupts nodes that are due.
pub(super) fn disrupt_due_nodes(
    cx: &mut Context,
    provisioning: &mut Provisioning,
    consolidation: &mut Consolidation,
    lease: &mut LeaseSync,
    interruptions: &Interruptions,
    due_sweeps: &DueSweeps,
    now: Timestamp,
) {
    provisioning.check_due = None;
    if due_sweeps.is_empty() && provisioning.check_is_too_early(cx, now) {
        provisioning.check_due = provisioning.next_check;
        return;
    }
    if cx.state.ledger.claims.is_empty() && due_sweeps.is_empty() {
        return;
    }
    provisioning.next_check = now.checked_add(CHECK_APART).ok();
    safeguards::check_changed_configuration(cx, now);
    let disruption_view = cx.state.disruption_view(now);
    let mut plan = plan::select_disruptions(&disruption_view, now);
    let evaluated = sweeps::evaluated_claims(&disruption_view, &plan);
    provisioning.budget_counts = std::mem::take(&mut plan.budget_counts);
    let reported = std::mem::replace(&mut provisioning.invalid_inputs, disruption_view.misreads);
    let news = provisioning.invalid_inputs.difference(&reported).cloned();
    cx.outbox.reports.extend(news.map(Report::Misread));
    safeguards::check_cluster_health(cx, consolidation, plan.ailing, now);
    if let Some(until) = sync::keeps_empty_until(cx, now) {
        plan.retire.retain(|termination| termination.reason != Reason::Empty);
        cx.outbox.wake_at(until, "empty nodes can be disrupted without the buffers");
    }
    let empty = plan.retire.iter().any(|termination| {
        let claim = termination.claim.as_ref();
        let is_news = claim.is_some_and(|id| !provisioning.observed_leaving.contains(id));
        termination.reason == Reason::Empty && is_news
    });
    if empty && cx.state.buffers().next().is_some() {
        // The last plan may be out of date.
        cx.state.held = plan::provision(&cx.state.snapshot(now), now).held;
        plan = plan::select_disruptions(&cx.state.disruption_view(now), now);
    }
    if let Some(due) = plan::next_due(&plan.kept) {
        cx.outbox.wake_at(due, "a node may have been empty or unhealthy for long enough");
    }
    cx.outbox.wake_at(next_expiry(cx, now), "a node has expired");
    report_blocked_disruptions(cx, lease, &plan, false);
    sweeps::record_checked_nodes(cx, due_sweeps, &evaluated, &plan, now);
    provisioning.report_eligible(cx, &plan, &[Reason::Empty, Reason::Drifted, Reason::Expired]);
    provisioning.retained_nodes.record_check(&mut plan);
    for claim in plan.cancel {
        drain::disrupt_node(cx, interruptions, &claim, Reason::Surplus, now);
    }
    for retire in plan.retire {
        let Some(claim) = retire.claim.clone() else {
            continue;
        };
        let needed = consolidation.replacement_pods.needed_until(&claim, now);
        if let Some(until) = needed.filter(|_| retire.reason == Reason::Empty) {
            cx.outbox.wake_at(until, "pods are expected on an empty node");
            continue;
        }
        if let Some(why) = retire.cause.filter(|_| !provisioning.observed_leaving.contains(&claim))
        {
            let node = retire.node.clone();
            cx.outbox.push_report(Report::Drifted { node, why });
        }
        if cx.is_managing() {
            drain::disrupt_node(cx, interruptions, &claim, retire.reason, now);
        } else {
            provisioning.report_possible_disruption(cx, claim, retire);
        }
    }
}

/// Returns when the next node reaches its maximum age.
fn next_expiry(cx: &Context, now: Timestamp) -> Option<Timestamp> {
    let claims = cx.state.ledger.claims.values();
    let aged = claims.filter_map(|claim| expiry::claim_expiry(&claim.record));
    aged.filter(|at| *at > now).min()
}

/// Reports due nodes, and nodes that consolidation would disrupt, if their disruption is
/// blocked until a certain time or an approval. Each pool, reason and kind of verdict is
/// reported once.
pub(super) fn report_blocked_disruptions(
    cx: &mut Context,
    lease: &mut LeaseSync,
    plan: &Plan,
    is_weighed: bool,
) {
    let mut blocked = BTreeMap::new();
    for kept in plan.kept.iter().filter(|kept| kept.verdict.is_reported(kept.reason)) {
        let node = cx.state.objects.nodes.get(&kept.node);
        let Some(pool) = node.and_then(|node| node.pool_name()) else {
            continue;
        };
        let key = (pool, kept.reason, kept.verdict.code());
        blocked.entry(key).or_insert_with(|| match kept.verdict {
            Verdict::Blocked(_) => format!("node {}: {}", kept.node, kept.verdict),
            _ => kept.verdict.to_string(),
        });
    }
    for (pool, reason, why) in lease.record_blocked_disruptions(blocked, is_weighed) {
        cx.outbox.push_report(Report::Shut { pool, reason, why });
    }
}

/// Returns when the batch window of the current pods closes.
fn batch_closes(cx: &Context, interruptions: &Interruptions, now: Timestamp) -> Closes {
    let idle = cx.state.cluster.batching.idle;
    if interruptions.drains_interrupted(cx, now) {
        Closes::Soon
    } else if cx.state.is_scheduler_behind(idle, now) {
        Closes::AtMax
    } else {
        Closes::WhenIdle
    }
}

/// Plans static pools, and also pending pods if `whole`. Returns the number of pending pods, the
/// plan, and whether launches were dropped because of a test node.
fn plan_round(cx: &mut Context, whole: bool, now: Timestamp) -> (usize, Plan, bool) {
    let tried = registration_backoff::include_test_zones(cx);
    let mut snapshot = cx.state.snapshot(now);
    if !whole {
        snapshot.pending.clear();
        snapshot.spare.pods.clear();
    }
    let pending = snapshot.pending.len();
    let mut plan = plan::provision(&snapshot, now);
    registration_backoff::exclude_untried_zones(cx, now);
    let waits = registration_backoff::keep_one_test_launch(cx, &mut plan, &tried);
    (pending, plan, waits)
}

/// Records that all pending pods were planned.
fn report_decision_time(cx: &mut Context, now: Timestamp) {
    let waited = cx.batcher.record_plan(now);
    if !waited.is_empty() {
        cx.outbox.push_report(Report::Decided(waited));
    }
}

/// Compares a changed pod with its known state, before the change is applied.
pub(super) fn before_pod_change(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    pod: &Pod,
    now: Timestamp,
) {
    consolidation.observe_pod(cx, pod, now);
    report_pod_start(cx, pod, now);
    cx.state.on_pod_observed(pod);
}

/// Reports the time until a pod was bound, and its startup time, if this change shows it bound or
/// running.
fn report_pod_start(cx: &mut Context, pod: &Pod, now: Timestamp) {
    let known = cx.state.objects.pods.get(&pod.key);
    let known = known.filter(|known| known.uid == pod.uid && known.phase == PodPhase::Pending);
    let waited = known.is_some();
    let is_bound = known.is_some_and(|known| known.node.is_none()) && pod.node.is_some();
    if let Some(at) = pod.created.filter(|_| is_bound) {
        cx.outbox.push_report(Report::PodBound(now.duration_since(at)));
    }
    let made = pod.created.filter(|_| waited && pod.phase == PodPhase::Running);
    if let Some(at) = made {
        cx.outbox.push_report(Report::PodStarted(now.duration_since(at)));
    }
}

fn report_round(cx: &mut Context, pending: usize, changed: bool, whole: bool, plan: &Plan) {
    let (short, ended) = cx.static_schedule.update_shortfalls(&plan.short, whole);
    cx.outbox.reports.extend(short.into_iter().map(Report::Short));
    cx.outbox.reports.extend(ended.into_iter().map(Report::Enough));
    for finding in &plan.findings {
        cx.outbox.push_report(Report::Failed {
            command: "plan",
            kind: crate::provider::FailureKind::Invalid,
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
        cx.outbox.push_report(Report::Planned {
            pending,
            placed: plan.placed.iter().map(|(_, pods)| pods.len()).sum(),
            claims: plan.launches.len(),
            unplaced: plan.unplaced.len(),
            price: Price::new(price).unwrap_or_default(),
        });
    }
}

/// Records that pods were planned onto a node. A node that is still tainted is treated like a
/// claim: all its pods are nominated. On an untainted node only pods that run on other nodes are
/// recorded. The other pods are bound immediately or not at all, and must not be planned again
/// repeatedly.
fn record_planned_pods(cx: &mut Context, node: &NodeName, pods: Vec<PodKey>, now: Timestamp) {
    let reschedulable = pods.iter().filter(|key| {
        let pod = cx.state.objects.pods.get(*key);
        pod.is_some_and(|pod| cx.state.is_reschedulable(pod, now))
    });
    let reschedulable: Vec<PodKey> = reschedulable.cloned().collect();
    let mut claims = cx.state.ledger.claims.values_mut();
    let Some(claim) = claims.find(|claim| claim.node.as_ref() == Some(node)) else {
        return;
    };
    let closed = claim.phase < ClaimPhase::Initialized;
    claim.pods.extend(if closed { pods } else { reschedulable });
}

fn cheapest_offering(claim: &NewNodeClaim) -> Option<&(OfferingKey, Price)> {
    claim.offerings.first()
}

/// Nodes that the last checks kept, with their verdicts.
#[derive(Clone, Debug, Default)]
pub(super) struct RetainedNodes {
    pub(super) checked: Vec<RetainedNode>,
    pub(super) weighed: Vec<RetainedNode>,
}

impl RetainedNodes {
    /// Records the result of a check of all nodes.
    pub(crate) fn record_check(&mut self, plan: &mut Plan) {
        self.checked = std::mem::take(&mut plan.kept);
    }

    /// Records the result of consolidation.
    pub(crate) fn record_consolidation(&mut self, plan: &mut Plan) {
        self.weighed = std::mem::take(&mut plan.kept);
    }

    /// Returns the most informative entry of each node. Expired entries are ignored.
    pub(super) fn by_node(&self, now: Timestamp) -> BTreeMap<&NodeName, &RetainedNode> {
        let mut by_node: BTreeMap<&NodeName, &RetainedNode> = BTreeMap::new();
        let entries = self.checked.iter().chain(&self.weighed);
        for kept in entries.filter(|kept| kept.verdict.ends_at().is_none_or(|at| at > now)) {
            let known = by_node.entry(&kept.node).or_insert(kept);
            if closeness_rank(kept) < closeness_rank(known) {
                *known = kept;
            }
        }
        by_node
    }
}

/// Rank of an entry: a lower rank means that the node was closer to disruption. The order is: due
/// nodes, empty nodes, nodes that consolidation considered, nodes with only a general verdict.
pub(super) fn closeness_rank(kept: &RetainedNode) -> u8 {
    match (kept.reason, &kept.verdict) {
        (_, Verdict::InUse { .. } | Verdict::Empty) => 3,
        (Reason::Underutilized, _) => 2,
        (Reason::Empty, _) => 1,
        _ => 0,
    }
}
