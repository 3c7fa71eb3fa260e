//! Safeguards that block and report due disruptions: too many nodes are not ready, or a
//! configuration change would disrupt too many nodes and no user has approved it yet.

use std::sync::Arc;

use jiff::Timestamp;

use crate::disruption::budgets::Budgets;
use crate::disruption::config_impact::newly_due;
use crate::engine::context::Context;
use crate::engine::controllers::Consolidation;
use crate::engine::drain;
use crate::engine::drain::cancellation;
use crate::engine::drain::waves;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::cluster::Cluster;
use crate::model::id::{ClaimId, PoolName};
use crate::model::pool::Reason;
use crate::model::template_hash::change_id;
use crate::state::candidates::{DisruptionView, NodeHealth, PendingApproval};
use crate::state::node_claims::NodeClaim;

impl Context {
    /// Returns the pending approval of the configuration, if any. The outer `None` means that the
    /// configuration was not checked yet.
    pub(super) fn pending_approval(&self) -> Option<Option<&PendingApproval>> {
        (!self.safeguards.changes.changed).then_some(self.state.unaccepted.as_ref())
    }
}

/// Prepares for a changed configuration.
pub(super) fn before_configuration_change(cx: &mut Context) {
    if !cx.safeguards.changes.changed && cx.safeguards.changes.weighed {
        cx.safeguards.changes.before = Some(Arc::clone(&cx.state.cluster));
    }
    cx.safeguards.changes.changed = true;
}

/// Releases the nodes that wait for approval, if the Lease has the approval. The approved
/// configuration may be a future one.
pub(super) fn check_accepted_change(cx: &mut Context) {
    let accepted = &cx.state.notes.accepted;
    let unaccepted = &mut cx.state.unaccepted;
    if let Some(held) = unaccepted.take_if(|approval| accepted.contains(&approval.id)) {
        release_held_nodes(cx, held);
    }
}

/// Blocks the disruptions that a changed configuration causes, if there are too many. Earlier
/// disruptions that were not blocked continue. After a restart there is no earlier configuration.
pub(super) fn check_changed_configuration(cx: &mut Context, now: Timestamp) {
    if !std::mem::take(&mut cx.safeguards.changes.changed) {
        return;
    }
    cx.safeguards.changes.weighed = true;
    let (before, held) = (cx.safeguards.changes.before.take(), cx.state.unaccepted.take());
    cx.state.unaccepted = excessive_disruptions(cx, before.as_deref(), held.as_ref(), now);
    match (&cx.state.unaccepted, held) {
        (Some(approval), held) if held.as_ref() != Some(approval) => {
            let approval = approval.clone();
            cx.outbox.push_report(Report::Held(approval));
        }
        (None, Some(held)) => release_held_nodes(cx, held),
        _ => {}
    }
}

/// Returns the disruptions that the configuration causes and that must wait for approval, if there
/// are too many.
fn excessive_disruptions(
    cx: &Context,
    before: Option<&Cluster>,
    held: Option<&PendingApproval>,
    now: Timestamp,
) -> Option<PendingApproval> {
    let id = change_id(&cx.state.cluster);
    let limit = cx.state.cluster.safeguards.max_disrupted_per_reload?;
    if cx.state.notes.accepted.contains(&id) {
        return None;
    }
    let disruption_view = cx.state.disruption_view(now);
    let total = disruption_view.candidates.len() + disruption_view.going.len();
    let mut nodes = newly_due(&disruption_view, now);
    if let Some(cluster) = before {
        let earlier = DisruptionView { cluster, ..disruption_view };
        let allowed = newly_due(&earlier, now);
        nodes.retain(|node| {
            held.is_some_and(|approval| approval.nodes.contains(node)) || !allowed.contains(node)
        });
    }
    (nodes.len() > limit.nodes_of(total)).then_some(PendingApproval { id, nodes, total })
}

fn release_held_nodes(cx: &mut Context, approval: PendingApproval) {
    let nodes = approval.nodes.len();
    cx.outbox.push_report(Report::Unheld { id: approval.id, nodes });
}

/// Cancels disruptions whose nodes are not tainted yet if there are too many now, because nodes
/// were lost or disrupted meanwhile. Taints in flight were checked when they were sent.
pub(super) fn recheck_disruptions(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    now: Timestamp,
) {
    let leaving = cx.state.ledger.claims.iter().filter_map(|(id, claim)| {
        let reason = claim.leaving.filter(|reason| reason.is_budgeted())?;
        let waits = claim.phase == ClaimPhase::Draining
            && is_untainted(cx, id, claim)
            && !claim.must_be_disrupted(now);
        waits.then(|| (id.clone(), claim.record.pool.clone(), reason))
    });
    let leaving: Vec<(ClaimId, PoolName, Reason)> = leaving.collect();
    if leaving.is_empty() {
        return;
    }
    let disruption_view = cx.state.disruption_view(now);
    let mut budgets = Budgets::new(&disruption_view, now);
    let mut postponed = Vec::new();
    for (id, pool, reason) in leaving {
        if let Some(verdict) = budgets.exceeded_budget(&pool, reason) {
            budgets.on_disruption_cancelled(&pool);
            postponed.push((id, verdict.to_string()));
        }
    }
    for (id, why) in postponed {
        cancellation::postpone_drain(cx, consolidation, &id, why, now);
    }
}

/// Returns whether a disrupted node has no taint, no taint in flight and no evicted pod.
fn is_untainted(cx: &Context, id: &ClaimId, claim: &NodeClaim) -> bool {
    cx.progress.get(id).is_none_or(|progress| {
        let node = cx.state.node_of(claim);
        !progress.drain.release.is_released()
            && progress.step.is_none()
            && (progress.drain.taint.confirmed.is_none()
                || node.is_some_and(|node| drain::has_lost_taint(cx, id, node)))
    })
}

/// Reports once that voluntary disruption is suspended, and once that it resumes. Cancels
/// disruptions of tainted nodes from which no pod was evicted.
pub(super) fn check_cluster_health(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    ailing: Option<NodeHealth>,
    now: Timestamp,
) {
    let was_ailing = std::mem::replace(&mut cx.safeguards.changes.ailing, ailing.is_some());
    let Some(health) = ailing else {
        if was_ailing {
            cx.outbox.push_report(Report::Well(cx.state.disruption_view(now).health));
        }
        return;
    };
    if was_ailing {
        return;
    }
    cx.outbox.push_report(Report::Ailing(health));
    let claims = cx.state.ledger.claims.iter();
    let cancelled: Vec<ClaimId> = claims
        .filter(|(id, claim)| {
            claim.phase == ClaimPhase::Draining
                && claim.leaving.is_some_and(Reason::waits_for_placements)
                && !waves::may_evict(cx, id)
        })
        .map(|(id, _)| id.clone())
        .collect();
    for id in cancelled {
        let NodeHealth { unready, total } = health;
        let why = format!("{unready} of {total} nodes in the cluster are not ready");
        cancellation::cancel_disruption(cx, consolidation, &id, why, now);
    }
}
