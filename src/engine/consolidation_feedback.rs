//! Compares the expected savings of consolidation with the nodes that the moved pods required.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::disruption::consolidation_backoff::LOST_MAX;
use crate::engine::context::Context;
use crate::engine::controllers::{Consolidation, SavingsTracker};
use crate::engine::drain::waves;
use crate::engine::replacement_pods::is_for_reschedulable;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, PodKey, PoolName};
use crate::model::instance::Price;
use crate::model::pool::Reason;
use crate::plan::{self, Plan};
use crate::scheduling::NewNodeClaim;
use crate::state::node_claims::NodeClaim;

/// A node launched by consolidation is kept at least this long, so that its pods are not moved
/// again for the same saving.
const FRESH: SignedDuration = SignedDuration::from_mins(10);

/// A consolidation back-off ends if this fraction of the pods (one in 10) has left.
const LEFT_MANY: usize = 10;

impl SavingsTracker {
    /// Discards the results of an earlier configuration.
    pub(super) fn reset_results(&mut self) {
        self.pools.clear();
        self.in_pools.clear();
    }

    /// Forgets nodes that no longer exist.
    pub(super) fn retain_claims(&mut self, is_known: impl Fn(&ClaimId) -> bool) {
        self.shares.retain(|id, _| is_known(id));
    }
}

impl Consolidation {
    /// Records the start of a consolidation. The saving is divided among the nodes by their price.
    pub(super) fn record_expected_savings(&mut self, plan: &Plan, now: Timestamp) {
        let before: f64 = plan.retire.iter().map(price_per_hour).sum();
        for termination in &plan.retire {
            let Some(id) = termination.claim.as_ref().filter(|_| before > 0.0) else {
                continue;
            };
            let saves = plan.saves.usd_per_h() * price_per_hour(termination) / before;
            let share = (termination.pool.clone(), saves);
            self.savings.shares.insert(id.clone(), share);
            self.savings
                .pools
                .entry(termination.pool.clone())
                .or_default()
                .record_consolidation(saves, now);
        }
    }

    /// Records the cost of new nodes for replacement pods of moved pods, and for pods that lost
    /// their place to such pods. This cost reduces the saving.
    pub(super) fn attribute_losses(&mut self, cx: &mut Context, plan: &Plan, now: Timestamp) {
        let mut lost = false;
        for launch in &plan.launches {
            let each = cost_per_pod(cx, launch);
            for pod in &launch.pods {
                let moved = self
                    .replacement_pods
                    .attribute_cost(pod)
                    .or_else(|| consolidated_pool_of(cx, pod));
                let Some(pool) = moved else {
                    continue;
                };
                self.savings.pools.entry(pool).or_default().record_launch(each);
                lost = true;
            }
        }
        if lost {
            self.report_new_backoffs(cx, now);
        }
    }

    /// Returns the highest acceptable cost in $/h of new nodes for the pods of a disrupted node. If
    /// new nodes would cost more, the disrupted node is kept.
    pub(super) fn max_replacement_cost(&self, id: &ClaimId) -> f64 {
        let share = self.savings.shares.get(id);
        share.map_or(0.0, |(_, saves)| saves * LOST_MAX)
    }

    /// Subtracts the cost of new nodes for pods of a disrupted node from the saving of that node.
    pub(super) fn reduce_saving(&mut self, id: &ClaimId, cost: f64) {
        if let Some((pool, saves)) = self.savings.shares.get_mut(id) {
            *saves -= cost;
            let backoff = self.savings.pools.entry(pool.clone()).or_default();
            backoff.record_retained(cost);
        }
    }

    /// Records that a disrupted node is kept and saves nothing. If none of the pods of the node has
    /// moved, nothing is lost.
    pub(super) fn record_kept_node(&mut self, cx: &mut Context, id: &ClaimId, now: Timestamp) {
        let Some((pool, saves)) = self.savings.shares.remove(id) else {
            return;
        };
        let released = waves::may_evict(cx, id);
        let backoff = self.savings.pools.entry(pool).or_default();
        if released {
            backoff.record_launch(saves);
            self.report_new_backoffs(cx, now);
        } else {
            backoff.record_retained(saves);
        }
    }

    /// Updates the pools and nodes in consolidation back-off. The back-off ends if many pods have
    /// left, because a new consolidation may save something.
    pub(super) fn update_backoffs(&mut self, cx: &mut Context, now: Timestamp) {
        cx.state.resting.retain(|_, until| *until > now);
        cx.state.fresh.clear();
        let (mut pools, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        for (id, claim) in &cx.state.ledger.claims {
            let pool = &claim.record.pool;
            let rests = cx.state.resting.contains_key(pool);
            let until = protected_until(claim).filter(|until| *until > now);
            let Some(node) = claim.node.as_ref().filter(|_| rests || until.is_some()) else {
                continue;
            };
            let pods = cx.state.objects.pods_on(node.as_str());
            let pods = pods.filter(|pod| pod.is_reschedulable()).count();
            if rests {
                *pools.entry(pool.clone()).or_insert(0) += pods;
            }
            let Some(until) = until else {
                continue;
            };
            let before = self.savings.on_nodes.get(id).copied().unwrap_or_default();
            let highest = before.max(pods);
            nodes.insert(id.clone(), highest);
            if !have_many_left(pods, highest) {
                cx.state.fresh.insert(node.clone(), until);
            }
        }
        self.savings.on_nodes = nodes;
        for (pool, pods) in &mut pools {
            let before = self.savings.in_pools.get(pool).copied().unwrap_or_default();
            let highest = before.max(*pods);
            if have_many_left(*pods, highest) {
                self.savings.pools.remove(pool);
                cx.state.resting.remove(pool);
            }
            *pods = highest;
        }
        self.savings.in_pools = pools;
    }

    /// Puts pools in consolidation back-off and reports it.
    fn report_new_backoffs(&self, cx: &mut Context, now: Timestamp) {
        let pools = self.savings.pools.iter();
        let resting =
            pools.filter_map(|(pool, backoff)| Some((pool, backoff, backoff.back_off_until()?)));
        for (pool, backoff, until) in resting.filter(|(_, _, until)| *until > now) {
            if cx.state.resting.insert(pool.clone(), until) != Some(until) {
                let (saved, lost) = backoff.expected_and_lost();
                let why = format!(
                    "consolidation expected to save {saved:.4} $/h, but nodes of {lost:.4} $/h \
                     were kept or launched for the moved pods: no consolidation until {until}"
                );
                cx.outbox.reports.push_back(Report::Shut {
                    pool: pool.clone(),
                    reason: Reason::Underutilized,
                    why,
                });
            }
        }
    }
}

/// Returns the pool of the node that consolidation evicts this pod from. A pod that has lost its
/// place is planned before it is gone.
fn consolidated_pool_of(cx: &Context, pod: &PodKey) -> Option<PoolName> {
    let pod = cx.state.objects.pods.get(pod)?;
    let claim = cx.state.claim_under(Some(pod).filter(|pod| pod.deleting.is_some())?)?;
    let moves = claim.leaving == Some(Reason::Underutilized);
    moves.then(|| claim.record.pool.clone())
}

/// Returns the cost per pod of a planned node, in $/h.
pub(super) fn cost_per_pod(cx: &Context, launch: &NewNodeClaim) -> f64 {
    let Some((_, price)) = launch.offerings.first() else {
        return 0.0;
    };
    let node_overhead_price = cx.state.cluster.scheduling.node_overhead_price;
    #[expect(clippy::cast_precision_loss, reason = "a node takes some hundred pods")]
    let pods = launch.pods.len().max(1) as f64;
    (price.usd_per_h() + node_overhead_price.usd_per_h()) / pods
}

/// Returns the price of a node in $/h, or zero if it is unknown.
fn price_per_hour(termination: &plan::PlannedTermination) -> f64 {
    termination.price.map_or(0.0, Price::usd_per_h)
}

/// Returns until when a node is kept because consolidation recently launched it.
fn protected_until(claim: &NodeClaim) -> Option<Timestamp> {
    let launched = is_for_reschedulable(claim) && claim.phase == ClaimPhase::Initialized;
    launched.then(|| claim.record.created.checked_add(FRESH).ok())?
}

fn have_many_left(pods: usize, highest: usize) -> bool {
    (highest - pods) * LEFT_MANY >= highest && highest > 0
}
