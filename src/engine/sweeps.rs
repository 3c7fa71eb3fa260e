//! Scheduled sweeps: starts those that are due, and records on the Lease which have run.
//!
//! A sweep changes nothing itself. It widens the set of nodes that the checks of the same pass may
//! disrupt, and these apply every budget, window, pause and safeguard as without sweeps.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::coordination::lease_annotations::{SWEEPS, sweeps_text};
use crate::disruption::verdict::Verdict;
use crate::engine::command::{Command, LeasePatch};
use crate::engine::context::Context;
use crate::engine::controllers::Consolidation;
use crate::engine::in_flight::CommandPurpose;
use crate::engine::lease_annotations::LeaseSync;
use crate::engine::report::Report;
use crate::engine::sweep_result::{self, SweepRun, SweptNode, count_outcomes, found_nodes};
use crate::model::id::ClaimId;
use crate::model::pool::Reason;
use crate::model::sweep::SweepKind;
use crate::plan::Plan;
use crate::provider::CommandResult;
use crate::state::candidates::DisruptionView;
use crate::state::sweeps::{DueSweeps, SweepResult};

/// Returns whether a sweep is due and can start.
pub(super) fn is_any_due(cx: &Context, now: Timestamp) -> bool {
    cx.state.notes.fault.is_none() && cx.state.sweeps.is_any_due(ready_kinds(cx), now)
}

/// Returns whether a sweep of a kind could find its nodes. A drift sweep waits for the node
/// classes: without them, it would find too few nodes.
fn ready_kinds(cx: &Context) -> impl Fn(SweepKind) -> bool + use<> {
    let awaits_classes = cx.state.awaits_classes();
    move |kind| kind != SweepKind::Drift || !awaits_classes
}

/// Applies the schedules of the configuration. Nothing happens before the Lease was read: it
/// records the last sweeps, and pauses. Until then, nodes that need a sweep are kept.
pub(super) fn apply_schedules(cx: &mut Context, now: Timestamp) {
    if cx.state.notes.fault.is_none() {
        let state = &mut cx.state;
        state.sweeps.apply_schedules(&state.cluster, &state.notes.sweeps, now);
    }
}

/// Starts the due sweeps.
pub(super) fn start_due_sweeps(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    now: Timestamp,
) -> DueSweeps {
    if !is_any_due(cx, now) {
        return DueSweeps::default();
    }
    let is_ready = ready_kinds(cx);
    if cx.state.sweeps.get(SweepKind::Consolidation).is_some_and(|sweep| sweep.is_due(now)) {
        end_consolidation(cx, true, now);
    }
    let due = cx.state.sweeps.start_due(is_ready, now);
    if due.has_started(SweepKind::Consolidation) {
        consolidation.schedule.mark_swept(now);
    }
    for (sweep, at) in &due.skipped {
        cx.outbox.push_report(Report::SweepSkipped { sweep: *sweep, at: *at });
    }
    due
}

/// Returns the claims that a check evaluates for the reason of a sweep. Nodes that it selects for a
/// different reason are not evaluated for this one. Empty without sweeps, which alone use it.
pub(super) fn evaluated_claims(
    disruption_view: &DisruptionView<'_>,
    plan: &Plan,
) -> BTreeSet<ClaimId> {
    if disruption_view.sweeps.is_none_or(|sweeps| sweeps.is_empty()) {
        return BTreeSet::new();
    }
    let claims = disruption_view.candidates.iter().filter_map(|candidate| candidate.claim);
    let mut evaluated: BTreeSet<ClaimId> = claims.map(|claim| claim.record.id.clone()).collect();
    for claim in plan.retire.iter().filter_map(|node| node.claim.as_ref()) {
        evaluated.remove(claim);
    }
    evaluated
}

/// Records which nodes the checks of this pass found due, and reports the sweeps among them.
pub(super) fn record_checked_nodes(
    cx: &mut Context,
    due_sweeps: &DueSweeps,
    evaluated: &BTreeSet<ClaimId>,
    plan: &Plan,
    now: Timestamp,
) {
    for kind in [SweepKind::Drift, SweepKind::Expiry, SweepKind::Repair] {
        if cx.state.sweeps.get(kind).is_none() && !due_sweeps.has_started(kind) {
            continue;
        }
        let found = found_nodes(&cx.state, kind, plan, cx.is_managing());
        let nodes = sweep_result::names(&found);
        let claims = cx.state.ledger.claims.iter();
        // A node that this sweep did not permit may have been kept for a different reason.
        let due = claims.filter(|(id, claim)| {
            claim.node.as_ref().is_some_and(|node| nodes.contains(node))
                && cx.state.sweeps.permits(kind, Some(id), &claim.record.pool)
        });
        let due: BTreeSet<ClaimId> = due.map(|(id, _)| id.clone()).collect();
        let (is_known, claims) = (ready_kinds(cx)(kind), &cx.state.ledger.claims);
        let ended = cx.state.sweeps.found(kind).filter(|id| !claims.contains_key(*id));
        let ended: BTreeSet<ClaimId> = ended.cloned().collect();
        // While the node class of a pool is not ready, the drift of its nodes is unknown.
        let unknown = claims.iter().filter(|(_, claim)| {
            kind == SweepKind::Drift && cx.state.has_unready_class(&claim.record.pool)
        });
        let unknown: BTreeSet<ClaimId> = unknown.map(|(id, _)| id.clone()).collect();
        let is_evaluated = |id: &ClaimId| {
            ended.contains(id) || is_known && evaluated.contains(id) && !unknown.contains(id)
        };
        record_found_nodes(cx, due_sweeps, kind, &found, due, is_evaluated, now);
    }
}

/// Records the nodes that a sweep found, and reports the sweep.
pub(super) fn record_found_nodes(
    cx: &mut Context,
    due_sweeps: &DueSweeps,
    kind: SweepKind,
    found: &[SweptNode],
    due: BTreeSet<ClaimId>,
    evaluated: impl Fn(&ClaimId) -> bool,
    now: Timestamp,
) {
    let of_request = answer_request(cx, kind, found, now);
    let only_requested = of_request.filter(|_| !due_sweeps.started.contains_key(&kind));
    let result = count_outcomes(only_requested.unwrap_or(found));
    if due_sweeps.has_started(kind) {
        let at = due_sweeps.started.get(&kind).copied().unwrap_or(now);
        cx.outbox.push_report(Report::Swept { sweep: kind, at, result });
    }
    cx.state.sweeps.record_check(kind, due, evaluated, result);
}

/// Stores the result of the requested sweep of this kind, if there is one, and returns its nodes.
fn answer_request<'a>(
    cx: &'a mut Context,
    kind: SweepKind,
    found: &[SweptNode],
    now: Timestamp,
) -> Option<&'a [SweptNode]> {
    let request = cx.state.sweeps.requested(kind)?;
    let nodes = sweep_result::nodes_of_request(found, request);
    let run = SweepRun { id: request.id, at: now, nodes };
    Some(&cx.sweep_runs.entry(kind).insert_entry(run).into_mut().nodes)
}

/// Counts the nodes that a run of consolidation disrupts. The sweep ends once a run finds nothing,
/// no node is being disrupted, and no node may become a candidate soon. In observe mode nothing
/// changes, so the first run is the last one.
pub(super) fn record_consolidation_result(cx: &mut Context, plan: &Plan, now: Timestamp) {
    let kind = SweepKind::Consolidation;
    if cx.state.sweeps.get(kind).is_none() && cx.state.sweeps.requested(kind).is_none() {
        return;
    }
    let found = found_nodes(&cx.state, kind, plan, cx.is_managing());
    answer_request(cx, kind, &found, now);
    cx.state.sweeps.end_request(kind);
    // Nodes that an earlier run disrupts were counted by that run.
    let disrupted = if cx.is_managing() { plan.retire.len() } else { 0 };
    let run = SweepResult { disrupted, ..count_outcomes(&found) };
    cx.state.sweeps.record_consolidation(run);
    let mut kept = plan.kept.iter().filter(|node| {
        let pool = sweep_result::pool_of(&cx.state, &node.node);
        cx.state.sweeps.permits(kind, None, &pool)
    });
    let is_held = kept.any(|node| {
        let passes = matches!(
            node.verdict,
            Verdict::RecentlyChanged { .. } | Verdict::Nominated | Verdict::LeaseUnreadable(_)
        );
        passes || node.verdict.is_safeguard()
    });
    let mut claims = cx.state.ledger.claims.values();
    let moves = claims.any(|claim| claim.leaving == Some(Reason::Underutilized));
    let is_quiet = plan.retire.is_empty() && plan.ailing.is_none() && !is_held && !moves;
    end_consolidation(cx, is_quiet || !cx.is_managing(), now);
}

/// Ends the running sweep of consolidation if it `is_complete` or lasts too long.
fn end_consolidation(cx: &mut Context, is_complete: bool, now: Timestamp) {
    if let Some((at, result)) = cx.state.sweeps.end_consolidation(is_complete, now) {
        cx.outbox.push_report(Report::Swept { sweep: SweepKind::Consolidation, at, result });
    }
}

/// Records the last sweeps on the Lease of a managed cluster.
pub(super) fn record_sweeps(cx: &mut Context, lease: &mut LeaseSync, now: Timestamp) {
    if cx.state.ledger.claims.is_empty() {
        answer_request(cx, SweepKind::Consolidation, &[], now);
        cx.state.sweeps.end_request(SweepKind::Consolidation);
        end_consolidation(cx, true, now);
    } else {
        end_consolidation(cx, false, now);
    }
    if !cx.state.sweeps.unrecorded || !cx.is_managing() || !lease.may_record_sweeps(cx, now) {
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
    let written = lease.on_written(cx, result, now);
    lease.on_sweeps_recorded(cx, written, now);
    cx.state.sweeps.unrecorded |= !written;
}
