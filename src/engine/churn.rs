//! What becomes of pods that were moved to save something: whether nodes have to be made for them.
//! It must not know why their plan did not come true.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::disrupt::churn::Churn;
use crate::engine::Engine;
use crate::engine::report::Report;
use crate::model::id::{ClaimId, PoolName};
use crate::model::instance::Price;
use crate::model::pool::Reason;
use crate::plan::{self, Plan};

/// A pool rests no longer once one of so many of its pods has left.
const LEFT_MANY: usize = 10;

/// What came of moves, by pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Moves {
    pools: BTreeMap<PoolName, Churn>,
    /// What is to be saved by each node that leaves, in $/h, and the pool that counts it.
    shares: BTreeMap<ClaimId, (PoolName, f64)>,
    /// Of pools that rest, the most pods that were on their nodes at any weighing since.
    pods: BTreeMap<PoolName, usize>,
}

impl Moves {
    /// Forgets nodes that are gone.
    pub(super) fn retain(&mut self, is_known: impl Fn(&ClaimId) -> bool) {
        self.shares.retain(|id, _| is_known(id));
    }
}

impl Engine {
    /// Nodes begin to leave so that something is saved: each one's share is what it costs.
    pub(super) fn begin_moves(&mut self, plan: &Plan, now: Timestamp) {
        let price = |own: &plan::Retire| own.price.map_or(0.0, Price::usd_per_h);
        let before: f64 = plan.retire.iter().map(price).sum();
        for own in &plan.retire {
            let Some(id) = own.claim.as_ref().filter(|_| before > 0.0) else {
                continue;
            };
            let saves = plan.saves.usd_per_h() * price(own) / before;
            let share = (own.pool.clone(), saves);
            self.moves.shares.insert(id.clone(), share);
            let churn = self.moves.pools.entry(own.pool.clone()).or_default();
            churn.moved(saves, now);
        }
    }

    /// Nodes are about to be made for pods that wait: what they cost for pods that came in place of
    /// others that were moved was not saved.
    pub(super) fn heed_losses(&mut self, plan: &Plan, now: Timestamp) {
        let node_price = self.state.cluster.scheduling.node_price.usd_per_h();
        let mut lost = false;
        for launch in &plan.launches {
            let Some((_, price)) = launch.offerings.first() else {
                continue;
            };
            #[expect(clippy::cast_precision_loss, reason = "a node takes some hundred pods")]
            let each = (price.usd_per_h() + node_price) / launch.pods.len().max(1) as f64;
            for pool in launch.pods.iter().filter_map(|pod| self.heirs.settle(pod)) {
                let churn = self.moves.pools.entry(pool).or_default();
                churn.lost(each);
                lost = true;
            }
        }
        if lost {
            self.rest(now);
        }
    }

    /// A node that was to leave stays, and saves nothing. Where no pod of it has moved, nothing is
    /// lost.
    pub(super) fn heed_stay(&mut self, id: &ClaimId, now: Timestamp) {
        let Some((pool, saves)) = self.moves.shares.remove(id) else {
            return;
        };
        let released = self.works.get(id).is_some_and(|own| own.drain.released);
        let churn = self.moves.pools.entry(pool).or_default();
        if released {
            churn.lost(saves);
            self.rest(now);
        } else {
            churn.stays(saves);
        }
    }

    /// Pools of which many pods have left for good rest no more: there is something else to save.
    pub(super) fn wake_rested(&mut self, now: Timestamp) {
        self.state.resting.retain(|_, until| *until > now);
        let resting = &self.state.resting;
        self.moves.pods.retain(|pool, _| resting.contains_key(pool));
        let resting: Vec<PoolName> = resting.keys().cloned().collect();
        for pool in resting {
            let claims = self.state.ledger.claims.values();
            let nodes = claims.filter(|own| own.record.pool == pool);
            let nodes = nodes.filter_map(|own| own.node.as_ref());
            let pods = nodes.flat_map(|own| self.state.objects.pods_on(own.as_str()));
            let pods = pods.filter(|own| own.is_reschedulable()).count();
            let most = self.moves.pods.entry(pool.clone()).or_insert(pods);
            *most = pods.max(*most);
            if (*most - pods) * LEFT_MANY >= *most && *most > 0 {
                self.moves.pools.remove(&pool);
                self.state.resting.remove(&pool);
            }
        }
    }

    /// Takes note of pools that rest, and tells of it.
    fn rest(&mut self, now: Timestamp) {
        let pools = self.moves.pools.iter();
        let resting = pools.filter_map(|(pool, own)| Some((pool, own, own.rests_until()?)));
        for (pool, own, until) in resting.filter(|(_, _, until)| *until > now) {
            if self.state.resting.insert(pool.clone(), until) != Some(until) {
                let (saved, lost) = own.figures();
                let why = format!(
                    "{saved:.4} $/h were to be saved, and nodes of {lost:.4} $/h had to stay or be \
                     made for the pods that were moved: nothing is moved until {until}"
                );
                self.reports.push_back(Report::Shut {
                    pool: pool.clone(),
                    reason: Reason::Underutilized,
                    why,
                });
            }
        }
    }
}
