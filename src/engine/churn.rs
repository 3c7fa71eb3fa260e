//! What becomes of pods that were moved to save something: whether nodes have to be made for them.
//! It must not know why their plan did not come true.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::disrupt::churn::Churn;
use crate::engine::Engine;
use crate::engine::report::Report;
use crate::model::id::{ClaimId, PodKey, PoolName};
use crate::model::instance::Price;
use crate::model::pool::Reason;
use crate::plan::{self, Plan};

/// So long after the last pod of an owner was told to move, pods of this owner that wait are taken
/// for those that come in their place.
const RETURNS: SignedDuration = SignedDuration::from_mins(5);

/// Pods of one owner that were told to move.
#[derive(Clone, Debug)]
struct Moved {
    /// The pool of the node that they were on.
    pool: PoolName,
    /// How many have not been seen to wait since.
    pods: usize,
    last: Timestamp,
}

/// What came of moves, by pool; pods that were moved lately, by the UID of their owner.
#[derive(Clone, Debug, Default)]
pub(super) struct Moves {
    pools: BTreeMap<PoolName, Churn>,
    moved: BTreeMap<String, Moved>,
}

impl Engine {
    /// Nodes begin to leave so that something is saved: each pool's share is what its nodes cost.
    pub(super) fn moves(&mut self, plan: &Plan, now: Timestamp) {
        let price = |own: &plan::Retire| own.price.map_or(0.0, Price::usd_per_h);
        let before: f64 = plan.retire.iter().map(price).sum();
        let after = plan::cost(&plan.launches).usd_per_h();
        let share = if before > 0.0 {
            1.0 - after / before
        } else {
            0.0
        };
        let mut pools: BTreeMap<&PoolName, f64> = BTreeMap::new();
        for own in &plan.retire {
            *pools.entry(&own.pool).or_insert(0.0) += price(own) * share;
        }
        for (pool, saves) in pools {
            let churn = self.moves.pools.entry(pool.clone()).or_default();
            churn.moved(saves, now);
        }
    }

    /// A pod was told to leave its node.
    pub(super) fn told_to_move(&mut self, id: &ClaimId, pod: &PodKey, now: Timestamp) {
        let claim = self.state.ledger.claims.get(id);
        let claim = claim.filter(|own| own.leaving == Some(Reason::Underutilized));
        let pod = self.state.objects.pods.get(pod);
        let owner = pod.and_then(|own| own.owner.as_ref());
        let Some((claim, owner)) = claim.zip(owner) else {
            return;
        };
        let pool = claim.record.pool.clone();
        let own = self.moves.moved.entry(owner.uid.clone());
        let own = own.or_insert(Moved {
            pool: pool.clone(),
            pods: 0,
            last: now,
        });
        own.pods += 1;
        (own.pool, own.last) = (pool, now);
    }

    /// Nodes are about to be made for pods that wait: what they cost for pods that were moved was
    /// not saved.
    pub(super) fn heed_losses(&mut self, plan: &Plan, now: Timestamp) {
        let fresh = |own: &Moved| now.duration_since(own.last) < RETURNS && own.pods > 0;
        self.moves.moved.retain(|_, own| fresh(own));
        if self.moves.moved.is_empty() {
            return;
        }
        let mut lost: BTreeMap<PoolName, f64> = BTreeMap::new();
        for launch in &plan.launches {
            let Some((_, price)) = launch.offerings.first() else {
                continue;
            };
            #[expect(clippy::cast_precision_loss, reason = "a node takes some hundred pods")]
            let each = price.usd_per_h() / launch.pods.len().max(1) as f64;
            for key in &launch.pods {
                let pod = self.state.objects.pods.get(key);
                let owner = pod.and_then(|own| own.owner.as_ref());
                let moved = owner.and_then(|own| self.moves.moved.get_mut(&own.uid));
                if let Some(own) = moved.filter(|own| own.pods > 0) {
                    own.pods -= 1;
                    *lost.entry(own.pool.clone()).or_insert(0.0) += each;
                }
            }
        }
        for (pool, costs) in lost {
            let churn = self.moves.pools.entry(pool).or_default();
            churn.lost(costs);
        }
        self.rest(now);
    }

    /// A node that was to leave stays: what it costs is not saved.
    pub(super) fn heed_stay(&mut self, id: &ClaimId, now: Timestamp) {
        let claim = self.state.ledger.claims.get(id);
        let Some(claim) = claim.filter(|own| own.leaving == Some(Reason::Underutilized)) else {
            return;
        };
        let price = self.state.price_of_instance(claim);
        let costs = price.map_or(0.0, Price::usd_per_h);
        let churn = self.moves.pools.entry(claim.record.pool.clone());
        churn.or_default().lost(costs);
        self.rest(now);
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
