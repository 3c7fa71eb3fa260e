//! Shares usage with other clusters: requests grants from the fleet before launches, and reports
//! the cluster's usage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::disruption::budgets::Budgets;
use crate::engine::backoff::Backoff;
use crate::engine::claim_steps;
use crate::engine::claims;
use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::in_flight::{ClaimProgress, ClaimStep, CommandPurpose};
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::fleet::{
    ClaimUsage, DisruptionUsage, FleetView, GrantRequest, SharedReservation,
};
use crate::model::id::{ClaimId, NodeClassName};
use crate::model::instance::UnavailableKey;
use crate::model::pool::{Limits, Reason, applies_to_reason};
use crate::provider::{CommandResult, OfferingRefusal, RefusalKind};
use crate::state::node_claims::NodeClaim;
use crate::state::unavailable_offerings::HOLD;

/// Delay before unschedulable pods are planned again after capacity in the fleet was released.
const ROOM: SignedDuration = SignedDuration::from_secs(1);

/// Clusters that start together report their usage within seconds. If a cluster does not report for
/// longer than this, pods stop waiting and use capacity that is not reserved.
const CLOSED_MAX: SignedDuration = SignedDuration::from_secs(15);

/// The reports to the fleet and the back-off of requests.
#[derive(Clone, Debug, Default)]
pub(super) struct FleetSync {
    /// The usage of each claim as last reported. `None` before the first full report.
    told: Option<BTreeMap<ClaimId, ClaimUsage>>,
    /// True if the fleet has received the usage of all claims.
    heard: bool,
    /// True if a usage report is in flight.
    telling: bool,
    /// Back-off after a failed report.
    retry: Backoff,
    /// Back-off of planning after a denied claim.
    denials: Backoff,
    /// Since when the fleet grants nothing.
    closed: Option<Timestamp>,
    /// The last report for the fleet's disruption budgets. `None` before the first report.
    disruption_usage: Option<DisruptionUsage>,
    /// True if a report for disruption budgets is in flight.
    reporting_disruptions: bool,
    /// Back-off after a failed report for disruption budgets.
    report_disruptions_again: Backoff,
}

impl FleetSync {
    /// Records the new state of the fleet. If the fleet has more remaining capacity, unschedulable
    /// pods are planned again.
    pub(super) fn on_fleet_changed(
        &mut self,
        cx: &mut Context,
        view: Option<Arc<FleetView>>,
        now: Timestamp,
    ) {
        if view.as_ref().is_some_and(|view| is_outdated_view(cx, view)) {
            return;
        }
        let more = match (&cx.state.fleet, &view) {
            (Some(old), Some(new)) => has_more(old, new),
            (None, Some(_)) => false,
            (_, None) => true,
        };
        if cx.state.fleet.is_none() || view.is_none() {
            *self = FleetSync::default();
        }
        self.set_fleet_view(cx, view, now);
        if more {
            self.denials = Backoff::default();
            let soon = now.checked_add(ROOM).unwrap_or(now);
            cx.batcher.plan_again_at(soon);
        }
    }

    fn set_fleet_view(&mut self, cx: &mut Context, view: Option<Arc<FleetView>>, now: Timestamp) {
        let closed = view.as_ref().and_then(|view| view.closed.as_ref());
        let since = self.closed.unwrap_or(now);
        self.closed = closed.map(|_| since);
        cx.state.fleet = view;
    }

    /// Reports changed usage of claims to the fleet. The usage is reported even if the cluster
    /// state is out of sync, because the provider confirms which instances exist and a report
    /// changes nothing.
    pub(super) fn report_usage(&mut self, cx: &mut Context, now: Timestamp) {
        if cx.state.fleet.is_none() || !cx.state.ledger.is_settled() || self.telling {
            return;
        }
        if cx.outbox.waits_until(self.retry.next_attempt(), "report to the fleet", now) {
            return;
        }
        let held = usage_by_claim(cx);
        let whole = self.told.is_none();
        let known = self.told.take().unwrap_or_default();
        let mut claims: Vec<(ClaimId, Option<ClaimUsage>)> = Vec::new();
        for (id, usage) in &held {
            if known.get(id) != Some(usage) {
                claims.push((id.clone(), Some(usage.clone())));
            }
        }
        let gone = known.keys().filter(|id| !held.contains_key(*id));
        claims.extend(gone.map(|id| (id.clone(), None)));
        self.told = Some(held);
        if whole || !claims.is_empty() {
            self.telling = true;
            let command = Command::ReportUsage { whole, claims };
            cx.outbox.queue_command(command, CommandPurpose::ReportUsage, now);
        }
    }

    /// Requests a grant from the fleet for the usage of a planned claim. Returns whether its launch
    /// has to wait.
    pub(super) fn request_grant(&mut self, cx: &mut Context, id: &ClaimId, now: Timestamp) -> bool {
        let Some(claim) = cx.claim(id) else {
            return false;
        };
        let granted = cx.progress.get(id).is_some_and(|progress| progress.granted);
        let holding = usage_of(cx, claim);
        // A claim past the phase `Planned` is reported even without a grant.
        let fleet = cx.state.fleet.as_ref();
        let shares = fleet.is_some_and(|fleet| fleet.is_limited() || holding.reservation.is_some());
        if granted || !shares || claim.phase != ClaimPhase::Planned {
            return false;
        }
        // A cluster that has not reported its usage gets no grants.
        let may = cx.is_managing() && self.heard;
        let Some(reported) = self.told.as_mut().filter(|_| may) else {
            return true;
        };
        let claim = id.clone();
        reported.insert(claim.clone(), holding.clone());
        let ask = Box::new(GrantRequest { claim, holding });
        claim_steps::send_step(cx, id, ClaimStep::RequestGrant, Command::RequestGrant(ask), now);
        true
    }

    /// Handles a grant for a claim.
    pub(super) fn on_granted(&mut self, cx: &mut Context, id: &ClaimId, now: Timestamp) {
        self.denials = Backoff::default();
        let retry = cx.claim(id).map(|claim| claim_steps::launch_retry(cx, &claim.pods));
        if let Some(progress) = cx.progress.get_mut(id) {
            progress.granted = true;
            progress.retry = retry.unwrap_or_default();
        }
        cx.outbox.wake_at(now, "a claim can be launched");
    }

    /// Drops a denied claim. Its pods are planned again with the remaining capacity.
    pub(super) fn on_denied(
        &mut self,
        cx: &mut Context,
        id: &ClaimId,
        why: String,
        used_up: bool,
        view: Arc<FleetView>,
        now: Timestamp,
    ) {
        self.apply_fleet_view(cx, view, now);
        let closed = self.closed;
        let silent = closed.is_some_and(|since| now.duration_since(since) >= CLOSED_MAX);
        let claim = cx.claim(id);
        let reserved =
            claim.filter(|claim| claim.reservation_id().is_some() && (used_up || silent));
        // Other clusters use the reservation, or may do so, regardless of the catalog. The pods are
        // planned with the next cheapest offering immediately.
        let held = reserved.map(|claim| claim.offerings.clone()).unwrap_or_default();
        let goes_on = !held.is_empty();
        for offering in held {
            let until = now.checked_add(HOLD).unwrap_or(now);
            cx.state.holds.mark_unavailable(offering, until, now);
        }
        let claim = id.clone();
        cx.outbox.push_report(Report::ClaimDenied { claim, why });
        claims::forget_claim(cx, id);
        // Claims of one plan that are denied together count as one denial.
        if !goes_on && self.denials.is_due(now) {
            self.denials.record_failure(now, &mut cx.rng);
        }
    }

    /// Records the view of the fleet that a result contains.
    pub(super) fn apply_fleet_view(
        &mut self,
        cx: &mut Context,
        view: Arc<FleetView>,
        now: Timestamp,
    ) {
        if cx.state.fleet.is_some() && !is_outdated_view(cx, &view) {
            self.set_fleet_view(cx, Some(view), now);
        }
    }

    /// Reports the nodes that the fleet's disruption budgets count, if the nodes have changed.
    pub(super) fn report_disruptions(&mut self, cx: &mut Context, now: Timestamp) {
        let budgets = cx.state.fleet.iter().flat_map(|fleet| &fleet.budgets);
        let periods = budgets.clone().filter_map(|budget| Some(budget.rate?.per));
        let longest = periods.max();
        if budgets.count() == 0 || self.reporting_disruptions {
            return;
        }
        let retry = self.report_disruptions_again.next_attempt();
        if cx.outbox.waits_until(retry, "report to the fleet", now) {
            return;
        }
        let disruption_usage = current_disruption_usage(cx, longest, now);
        if self.disruption_usage.as_ref() != Some(&disruption_usage) {
            self.reporting_disruptions = true;
            self.disruption_usage = Some(disruption_usage.clone());
            let command = Command::ReportDisruptions(Box::new(disruption_usage));
            cx.outbox.queue_command(command, CommandPurpose::ReportDisruptions, now);
        }
    }

    /// Handles the result of a report. A failed report is repeated.
    pub(super) fn on_disruptions_reported(
        &mut self,
        cx: &mut Context,
        result: &CommandResult,
        now: Timestamp,
    ) {
        self.reporting_disruptions = false;
        if *result == CommandResult::Done {
            self.report_disruptions_again = Backoff::default();
        } else {
            self.disruption_usage = None;
            self.report_disruptions_again.record_failure(now, &mut cx.rng);
        }
    }

    /// Requests the fleet's permission to disrupt a node. Returns whether the disruption has to
    /// wait.
    pub(super) fn request_disruption(
        &self,
        cx: &mut Context,
        id: &ClaimId,
        reason: Reason,
        now: Timestamp,
    ) -> bool {
        let granted = cx.drain_of(id).is_some_and(|drain| drain.clearance.is_granted());
        let mut budgets = cx.state.fleet.iter().flat_map(|fleet| &fleet.budgets);
        if granted || !budgets.any(|budget| applies_to_reason(&budget.reasons, reason)) {
            return false;
        }
        // A cluster that has not reported its usage gets no permission.
        if self.disruption_usage.is_some() && !self.reporting_disruptions {
            let claim = id.clone();
            let ask = Command::RequestDisruption { claim, reason };
            claim_steps::send_step(cx, id, ClaimStep::RequestDisruption, ask, now);
        }
        true
    }

    /// Returns when claims may be planned again after a denial.
    pub(super) fn denied_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.denials.next_attempt().filter(|at| *at > now)
    }

    /// Handles the result of a usage report. After a failure, all claims are reported again.
    pub(super) fn on_usage_reported(
        &mut self,
        cx: &mut Context,
        result: &CommandResult,
        now: Timestamp,
    ) {
        self.telling = false;
        self.heard = *result == CommandResult::Done;
        if self.heard {
            self.retry = Backoff::default();
        } else {
            self.told = None;
            self.retry.record_failure(now, &mut cx.rng);
        }
    }
}

/// Returns whether the known state of the fleet is newer than this view.
fn is_outdated_view(cx: &Context, view: &FleetView) -> bool {
    let known = cx.state.fleet.as_ref();
    known.is_some_and(|known| view.number < known.number)
}

/// Records offerings that were refused in other clusters.
pub(super) fn mark_unavailable_offerings(
    cx: &mut Context,
    offerings: Vec<UnavailableKey>,
    until: Timestamp,
    now: Timestamp,
) {
    for key in offerings {
        cx.state.holds.mark_unavailable(key, until, now);
    }
}

/// Puts the refused offerings of a node class in back-off. Reports to other clusters the
/// offerings that would be refused there as well.
pub(super) fn on_offerings_refused(
    cx: &mut Context,
    class: Option<&NodeClassName>,
    refusals: &[OfferingRefusal],
    now: Timestamp,
) {
    let mut by_end: BTreeMap<Timestamp, BTreeSet<UnavailableKey>> = BTreeMap::new();
    for OfferingRefusal { offering, kind } in refusals {
        if *kind == RefusalKind::SpotDenied {
            let capacity_type = offering.capacity_type;
            let until = cx.state.holds.record_refused_capacity_type(capacity_type, now);
            let keys = by_end.entry(until).or_default();
            keys.insert(UnavailableKey::Way(capacity_type));
        }
        let class = class.filter(|_| !kind.is_general());
        let until = cx.state.holds.record_refusal(class, offering, now);
        if kind.is_general() {
            by_end.entry(until).or_default().insert(offering.clone().into());
        }
    }
    if cx.state.fleet.is_some() {
        for (until, offerings) in by_end {
            let what = offerings.into_iter().collect();
            let command = Command::MarkUnavailable { what, until };
            cx.outbox.queue_command(command, CommandPurpose::MarkUnavailable, now);
        }
    }
}

/// Returns the usage of all claims that may have an instance or for which a grant was requested.
fn usage_by_claim(cx: &Context) -> BTreeMap<ClaimId, ClaimUsage> {
    let claims = cx.state.ledger.claims.values().filter(|claim| {
        // Nodes of other owners that are only observed do not count against shared limits.
        if claim.foreign {
            return false;
        }
        let progress = cx.progress.get(&claim.record.id);
        claim.phase != ClaimPhase::Planned
            || progress.is_some_and(ClaimProgress::is_grant_requested)
    });
    claims.map(|claim| (claim.record.id.clone(), usage_of(cx, claim))).collect()
}

fn usage_of(cx: &Context, claim: &NodeClaim) -> ClaimUsage {
    let reservations = cx.state.catalog.reservations();
    let reservation = claim.reservation_id().and_then(|id| reservations.get(id));
    ClaimUsage {
        capacity: cx.state.capacity_of(claim),
        reservation: reservation.map(|reservation| SharedReservation {
            id: reservation.id.to_string(),
            count: reservation.total,
        }),
    }
}

fn current_disruption_usage(
    cx: &Context,
    longest: Option<SignedDuration>,
    now: Timestamp,
) -> DisruptionUsage {
    let mut disruption_view = cx.state.disruption_view(now);
    disruption_view
        .candidates
        .retain(|candidate| candidate.claim.is_none_or(|claim| !claim.foreign));
    let (nodes, disrupted) = Budgets::new(&disruption_view, now).total_and_disrupted();
    let being_disrupted: usize = disruption_view.leaving.values().sum();
    let unready = disrupted.saturating_sub(being_disrupted);
    let (mut leaving, mut let_go) = (BTreeSet::new(), BTreeMap::new());
    for (id, claim) in &cx.state.ledger.claims {
        let Some(reason) = claim.leaving.filter(|_| claim.node.is_some()) else {
            continue;
        };
        // A disruption that was not requested yet does not count against the budget.
        let is_counted = cx.progress.get(id).is_some_and(|progress| {
            progress.drain.clearance.is_granted()
                || matches!(progress.step, Some((_, ClaimStep::RequestDisruption)))
        });
        if !reason.is_budgeted() {
            leaving.insert(id.clone());
        } else if is_counted {
            leaving.insert(id.clone());
            let_go.insert(id.clone(), (claim.since, reason));
        }
    }
    let since = longest.and_then(|period| now.checked_sub(period).ok());
    let recorded = cx.state.notes.let_go.iter();
    let recorded = recorded.filter(|(_, record)| since.is_some_and(|since| record.at > since));
    let_go.extend(recorded.map(|(id, record)| (id.clone(), (record.at, record.reason))));
    if longest.is_none() {
        let_go.clear();
    }
    DisruptionUsage { nodes, unready, leaving, let_go }
}

/// Returns whether the fleet has more capacity of any kind than before.
fn has_more(old: &FleetView, new: &FleetView) -> bool {
    let (before, now) = (&old.share, &new.share);
    let mut names = before.capacity.iter().map(|(name, _)| name);
    (old.closed.is_some() && new.closed.is_none())
        || now.nodes.unwrap_or(u32::MAX) > before.nodes.unwrap_or(u32::MAX)
        || names.any(|name| limit_of(now, name) > limit_of(before, name))
}

/// Returns the limit of a resource, or the highest possible amount if the resource is not limited.
fn limit_of(limits: &Limits, name: &str) -> i64 {
    let found = limits.capacity.iter().find(|(other, _)| other == name);
    found.map_or(i64::MAX, |(_, amount)| *amount)
}
