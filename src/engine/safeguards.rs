//! Safeguards that block due disruptions and report it: too many nodes are not ready, or a
//! configuration change would disrupt too many nodes before a user approves it.

use std::sync::Arc;

use jiff::Timestamp;

use crate::disruption::budgets::Budgets;
use crate::disruption::config_impact::newly_due;
use crate::engine::Engine;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::cluster::Cluster;
use crate::model::id::{ClaimId, PoolName};
use crate::model::pool::Reason;
use crate::model::template_hash::change_id;
use crate::state::candidates::{DisruptionView, NodeHealth, PendingApproval};
use crate::state::node_claims::NodeClaim;

/// The state of the safeguards.
#[derive(Debug, Default)]
pub(super) struct SafeguardState {
    /// True if the suspension because of unready nodes was reported.
    ailing: bool,
    /// True if the disruptions of the configuration still have to be checked.
    changed: bool,
    /// True if they were ever checked.
    weighed: bool,
    /// The last checked configuration, if it was replaced.
    before: Option<Arc<Cluster>>,
}

impl Engine {
    /// Prepares for a changed configuration.
    pub(super) fn replace_configuration(&mut self) {
        if !self.safeguard.changed && self.safeguard.weighed {
            self.safeguard.before = Some(Arc::clone(&self.state.cluster));
        }
        self.safeguard.changed = true;
    }

    /// Returns the pending approval of the configuration, if any. `None` until the configuration
    /// was checked.
    pub fn pending_approval(&self) -> Option<Option<&PendingApproval>> {
        (!self.safeguard.changed).then_some(self.state.unaccepted.as_ref())
    }

    /// Releases the held nodes if the Lease has the approval. The approved configuration may be a
    /// future one.
    pub(super) fn check_accepted_change(&mut self) {
        let accepted = &self.state.notes.accepted;
        let unaccepted = &mut self.state.unaccepted;
        if let Some(held) = unaccepted.take_if(|approval| accepted.contains(&approval.id)) {
            self.release_held_nodes(held);
        }
    }

    /// Holds the disruptions of a changed configuration if there are too many. Earlier disruptions
    /// that were not held continue. After a restart there is no earlier configuration.
    pub(super) fn check_changed_configuration(&mut self, now: Timestamp) {
        if !std::mem::take(&mut self.safeguard.changed) {
            return;
        }
        self.safeguard.weighed = true;
        let (before, held) = (self.safeguard.before.take(), self.state.unaccepted.take());
        self.state.unaccepted = self.excessive_disruptions(before.as_deref(), held.as_ref(), now);
        match (&self.state.unaccepted, held) {
            (Some(approval), held) if held.as_ref() != Some(approval) => {
                let approval = approval.clone();
                self.push_report(Report::Held(approval));
            }
            (None, Some(held)) => self.release_held_nodes(held),
            _ => {}
        }
    }

    /// Returns the disruptions of the configuration to hold, if there are too many.
    fn excessive_disruptions(
        &self,
        before: Option<&Cluster>,
        held: Option<&PendingApproval>,
        now: Timestamp,
    ) -> Option<PendingApproval> {
        let id = change_id(&self.state.cluster);
        let limit = self.state.cluster.safeguards.max_disrupted_per_reload?;
        if self.state.notes.accepted.contains(&id) {
            return None;
        }
        let disruption_view = self.state.disruption_view(now);
        let total = disruption_view.candidates.len() + disruption_view.going.len();
        let mut nodes = newly_due(&disruption_view, now);
        if let Some(cluster) = before {
            let earlier = DisruptionView { cluster, ..disruption_view };
            let allowed = newly_due(&earlier, now);
            nodes.retain(|node| {
                held.is_some_and(|approval| approval.nodes.contains(node))
                    || !allowed.contains(node)
            });
        }
        (nodes.len() > limit.nodes_of(total)).then_some(PendingApproval { id, nodes, total })
    }

    fn release_held_nodes(&mut self, approval: PendingApproval) {
        let nodes = approval.nodes.len();
        self.push_report(Report::Unheld { id: approval.id, nodes });
    }

    /// Cancels disruptions without a taint if there are too many now, because nodes were lost or
    /// disrupted meanwhile. Taints in flight were checked when they were sent.
    pub(super) fn recheck_disruptions(&mut self, now: Timestamp) {
        let leaving = self.state.ledger.claims.iter().filter_map(|(id, claim)| {
            let reason = claim.leaving.filter(|reason| reason.is_budgeted())?;
            let waits = claim.phase == ClaimPhase::Draining
                && self.is_untainted(id, claim)
                && !claim.must_be_disrupted(now);
            waits.then(|| (id.clone(), claim.record.pool.clone(), reason))
        });
        let leaving: Vec<(ClaimId, PoolName, Reason)> = leaving.collect();
        if leaving.is_empty() {
            return;
        }
        let disruption_view = self.state.disruption_view(now);
        let mut budgets = Budgets::new(&disruption_view, now);
        let mut postponed = Vec::new();
        for (id, pool, reason) in leaving {
            if let Some(verdict) = budgets.exceeded_budget(&pool, reason) {
                budgets.on_disruption_cancelled(&pool);
                postponed.push((id, verdict.to_string()));
            }
        }
        for (id, why) in postponed {
            self.postpone_drain(&id, why, now);
        }
    }

    /// Returns whether a disrupted node has no taint, none in flight, and no evicted pod.
    fn is_untainted(&self, id: &ClaimId, claim: &NodeClaim) -> bool {
        self.works.get(id).is_none_or(|progress| {
            let node = self.state.node_of(claim);
            !progress.drain.released
                && progress.step.is_none()
                && (progress.drain.tainted.is_none()
                    || node.is_some_and(|node| self.has_lost_taint(id, node)))
        })
    }

    /// Reports once that voluntary disruption is suspended, and once that it resumes. Cancels
    /// disruptions of tainted nodes from which no pod was evicted.
    pub(super) fn check_cluster_health(&mut self, ailing: Option<NodeHealth>, now: Timestamp) {
        let was_ailing = std::mem::replace(&mut self.safeguard.ailing, ailing.is_some());
        let Some(health) = ailing else {
            if was_ailing {
                self.push_report(Report::Well(self.state.disruption_view(now).health));
            }
            return;
        };
        if was_ailing {
            return;
        }
        self.push_report(Report::Ailing(health));
        let claims = self.state.ledger.claims.iter();
        let cancelled: Vec<ClaimId> = claims
            .filter(|(id, claim)| {
                claim.phase == ClaimPhase::Draining
                    && claim.leaving.is_some_and(Reason::waits_for_placements)
                    && !self.may_evict(id)
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in cancelled {
            let NodeHealth { unready, total } = health;
            let why = format!("{unready} of {total} nodes in the cluster are not ready");
            self.cancel_disruption(&id, why, now);
        }
    }
}
