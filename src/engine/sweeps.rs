//! Scheduled sweeps: starts those that are due, and records on the Lease which have run.
//!
//! A sweep changes nothing itself. It widens the set of nodes that the checks of the same pass may
//! disrupt, and these apply every budget, window, pause and safeguard as without sweeps.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::coordination::lease_annotations::{SWEEPS, sweeps_text};
use crate::disruption::verdict::Verdict;
use crate::engine::command::{Command, LeasePatch};
use crate::engine::context::Context;
use crate::engine::controllers::Consolidation;
use crate::engine::in_flight::CommandPurpose;
use crate::engine::lease_annotations::LeaseSync;
use crate::engine::report::Report;
use crate::model::id::{ClaimId, NodeName};
use crate::model::sweep::SweepKind;
use crate::plan::Plan;
use crate::provider::CommandResult;
use crate::state::candidates::DisruptionView;
use crate::state::sweeps::SweepResult;

/// Starts the due sweeps. Nothing starts before the Lease was read: it records the last sweeps, and
/// pauses.
pub(super) fn start_due_sweeps(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    now: Timestamp,
) -> BTreeMap<SweepKind, Timestamp> {
    if cx.state.notes.fault.is_some() {
        return BTreeMap::new();
    }
    let state = &mut cx.state;
    state.sweeps.apply_schedules(&state.cluster, &state.notes.sweeps, now);
    let started = state.sweeps.start_due(now);
    if started.contains_key(&SweepKind::Consolidation) {
        consolidation.schedule.mark_swept(now);
    }
    started
}

/// Returns the claims that a check evaluates. Empty without sweeps, which alone use it.
pub(super) fn evaluated_claims(disruption_view: &DisruptionView<'_>) -> BTreeSet<ClaimId> {
    if disruption_view.sweeps.is_empty() {
        return BTreeSet::new();
    }
    let claims = disruption_view.candidates.iter().filter_map(|candidate| candidate.claim);
    claims.map(|claim| claim.record.id.clone()).collect()
}

/// Records which nodes the checks of this pass found due, and reports the sweeps among them.
pub(super) fn record_checked_nodes(
    cx: &mut Context,
    started: &BTreeMap<SweepKind, Timestamp>,
    evaluated: &BTreeSet<ClaimId>,
    plan: &Plan,
) {
    if cx.state.sweeps.is_empty() {
        return;
    }
    for kind in [SweepKind::Drift, SweepKind::Expiry] {
        let is_of_kind = |reason| SweepKind::of_reason(reason) == Some(kind);
        let claims = cx.state.ledger.claims.iter();
        let leaving = claims.filter(|(_, claim)| claim.leaving.is_some_and(is_of_kind));
        let mut due: BTreeSet<ClaimId> = leaving.map(|(id, _)| id.clone()).collect();
        let retired = plan.retire.iter().filter(|node| is_of_kind(node.reason));
        let disrupted: Vec<&ClaimId> = retired.filter_map(|node| node.claim.as_ref()).collect();
        let kept = plan.kept.iter().filter(|node| is_of_kind(node.reason));
        let blocked: BTreeSet<&NodeName> = kept
            .filter(|node| !matches!(node.verdict, Verdict::AwaitsSweep { .. }))
            .map(|node| &node.node)
            .collect();
        let result = SweepResult { disrupted: disrupted.len(), blocked: blocked.len() };
        if let Some(at) = started.get(&kind) {
            cx.outbox.push_report(Report::Swept { sweep: kind, at: *at, result });
        }
        due.extend(disrupted.into_iter().cloned());
        let claims = cx.state.ledger.claims.iter();
        let blocked = claims
            .filter(|(_, claim)| claim.node.as_ref().is_some_and(|node| blocked.contains(node)));
        due.extend(blocked.map(|(id, _)| id.clone()));
        cx.state.sweeps.record_check(kind, due, evaluated, result);
    }
}

/// Ends the sweep of consolidation once it finds nothing, and no budget, window or pause keeps a
/// node. In observe mode nothing changes, so the first run is the last one.
pub(super) fn record_consolidation_result(cx: &mut Context, plan: &Plan) {
    let is_held = plan.kept.iter().any(|node| node.verdict.is_safeguard());
    let is_last = !cx.is_managing() || plan.retire.is_empty() && !is_held;
    let completed = cx.state.sweeps.record_consolidation(plan.retire.len(), is_last);
    if let Some((at, result)) = completed {
        cx.outbox.push_report(Report::Swept { sweep: SweepKind::Consolidation, at, result });
    }
}

/// Records the last sweeps on the Lease of a managed cluster.
pub(super) fn record_sweeps(cx: &mut Context, lease: &mut LeaseSync, now: Timestamp) {
    if !cx.state.sweeps.unrecorded || !cx.is_managing() {
        return;
    }
    if !lease.may_write() {
        // A result without news still matters here.
        cx.changed = true;
        return;
    }
    lease.begin_write();
    cx.state.sweeps.unrecorded = false;
    let patch = LeasePatch {
        version: cx.state.notes.version.clone(),
        annotations: vec![(SWEEPS.to_owned(), Some(sweeps_text(&cx.state.sweeps.records())))],
    };
    cx.outbox.queue_command(Command::PatchLease(patch), CommandPurpose::RecordSweeps, now);
}

/// Handles the result of the record. After a failure, the Lease is read and the record is repeated.
pub(super) fn on_sweeps_recorded(
    cx: &mut Context,
    lease: &mut LeaseSync,
    result: CommandResult,
    now: Timestamp,
) {
    if !lease.on_written(cx, result, now) {
        cx.state.sweeps.unrecorded = true;
    }
}
