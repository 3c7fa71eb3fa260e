//! Decides whether one more node may be disrupted voluntarily. Pauses, maintenance windows,
//! cool-downs and the budgets of its pool, its cluster and the fleet must all allow it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::coordination::lease_annotations::DisruptionRecord;
use crate::disruption::cooldown::cool_down_end;
use crate::disruption::maintenance_windows;
use crate::disruption::verdict::{RuleScope, Verdict};
use crate::model::cluster::RemovedPools;
use crate::model::id::{ClaimId, NodeName, PoolName};
use crate::model::pool::{Budget, BudgetNodes, Maintenance, Rate, Reason, applies_to_reason};
use crate::state::candidates::{Candidate, DisruptionView};

/// Budget for pools that are no longer configured: the default budget.
static REMOVED_POOL: [Budget; 1] = [Budget::new(BudgetNodes::Percent(10))];

/// Remaining budget while nodes are disrupted one after another. A disrupted node counts against
/// the budgets of all reasons, not only of its own reason. Source: spec/disruption.md §1.6.
#[derive(Clone, Debug)]
pub struct Budgets<'a> {
    disruption_view: &'a DisruptionView<'a>,
    now: Timestamp,
    pools: BTreeMap<PoolName, Counts>,
    cluster: Counts,
    let_go: BTreeMap<ClaimId, DisruptionRecord>,
    gone: BTreeSet<NodeName>,
    /// Next opening of closed maintenance windows, by pool and reason.
    openings: RefCell<BTreeMap<(PoolName, Reason), Option<Timestamp>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Number of nodes that percentages refer to: initialized or being disrupted.
    total: usize,
    /// Number of nodes already disrupted: not ready, being deleted, or being disrupted.
    disrupted: usize,
}

impl<'a> Budgets<'a> {
    /// Creates the budgets of all pools and subtracts ongoing disruptions.
    pub fn new(disruption_view: &'a DisruptionView<'a>, now: Timestamp) -> Self {
        let mut pools: BTreeMap<PoolName, Counts> = BTreeMap::new();
        for (pool, count) in &disruption_view.leaving {
            let counts = pools.entry(pool.clone()).or_default();
            counts.total += count;
            counts.disrupted += count;
        }
        for candidate in &disruption_view.candidates {
            // Budgets do not count nodes that are not initialized.
            if candidate.initialized.is_some() {
                let counts = pools.entry(candidate.pool.clone()).or_default();
                counts.total += 1;
                counts.disrupted += usize::from(!is_undisrupted(candidate, now));
            }
        }
        let mut cluster = Counts::default();
        for pool in pools.values() {
            cluster.total += pool.total;
            cluster.disrupted += pool.disrupted;
        }
        Self {
            disruption_view,
            now,
            pools,
            cluster,
            let_go: disruption_view.let_go.clone(),
            gone: BTreeSet::new(),
            openings: RefCell::default(),
        }
    }

    /// Returns the number of nodes of the cluster that budgets count, and how many of them are
    /// being disrupted or not ready.
    pub fn total_and_disrupted(&self) -> (usize, usize) {
        (self.cluster.total, self.cluster.disrupted)
    }

    /// Returns these two numbers for each pool.
    pub fn total_and_disrupted_by_pool(&self) -> BTreeMap<PoolName, (usize, usize)> {
        let pools = self.pools.iter();
        pools.map(|(pool, counts)| (pool.clone(), (counts.total, counts.disrupted))).collect()
    }

    /// Returns whether the disruption of a node was already recorded.
    pub fn has_acquired(&self, candidate: &Candidate<'_>) -> bool {
        self.gone.contains(&candidate.node.name)
    }

    /// Records the disruption of a node if its budgets allow it. Otherwise returns the verdict.
    pub fn try_acquire(
        &mut self,
        candidate: &Candidate<'_>,
        reason: Reason,
    ) -> Result<(), Verdict> {
        if let Some(verdict) = self.refusal(candidate, reason) {
            return Err(verdict);
        }
        self.force_acquire(candidate);
        self.record_disruption(id_of(candidate), candidate.pool.clone(), reason);
        Ok(())
    }

    /// Records the disruption of a node that already counts as disrupted, if rates, pauses and
    /// maintenance windows allow it. Otherwise returns the verdict.
    pub fn try_acquire_leaving(
        &mut self,
        id: &ClaimId,
        pool: &PoolName,
        reason: Reason,
    ) -> Result<(), Verdict> {
        if let Some(verdict) = self.verdict_for(id, pool, reason, false) {
            return Err(verdict);
        }
        self.record_disruption(id.clone(), pool.clone(), reason);
        Ok(())
    }

    fn record_disruption(&mut self, id: ClaimId, pool: PoolName, reason: Reason) {
        let at = self.now;
        self.let_go.insert(id, DisruptionRecord { pool, reason, at });
    }

    /// Reverts the disruption of a node.
    pub fn release(&mut self, candidate: &Candidate<'_>) {
        if self.gone.remove(&candidate.node.name) {
            let less = usize::from(is_undisrupted(candidate, self.now));
            let counts = self.pools.entry(candidate.pool.clone()).or_default();
            counts.disrupted -= less;
            self.cluster.disrupted -= less;
            // Rates still count an earlier recorded disruption.
            let id = id_of(candidate);
            match self.disruption_view.let_go.get(&id).cloned() {
                Some(before) => self.let_go.insert(id, before),
                None => self.let_go.remove(&id),
            };
        }
    }

    /// Returns a verdict if more nodes of a pool are disrupted than its budget allows, and one of
    /// them is not tainted yet. This happens if other nodes fail after the decision.
    pub fn exceeded_budget(&self, pool: &PoolName, reason: Reason) -> Option<Verdict> {
        let (budgets, _) = self.rules_of(pool)?;
        let mut levels = self.budget_levels(budgets, pool).into_iter();
        levels.find_map(|(of, budgets, mut others)| {
            others.disrupted = others.disrupted.saturating_sub(1);
            let mut budgets = budgets.iter();
            let exhausted =
                budgets.find_map(|budget| exhausted_count(budget, of, others, reason, self.now));
            exhausted.map(|(_, verdict)| verdict)
        })
    }

    /// Records that the disruption of a node is cancelled.
    pub fn on_disruption_cancelled(&mut self, pool: &PoolName) {
        let counts = self.pools.entry(pool.clone()).or_default();
        counts.disrupted = counts.disrupted.saturating_sub(1);
        self.cluster.disrupted = self.cluster.disrupted.saturating_sub(1);
    }

    /// Records a disruption that ignores budgets.
    pub fn force_acquire(&mut self, candidate: &Candidate<'_>) {
        if self.gone.insert(candidate.node.name.clone()) {
            let more = usize::from(is_undisrupted(candidate, self.now));
            let counts = self.pools.entry(candidate.pool.clone()).or_default();
            counts.disrupted += more;
            self.cluster.disrupted += more;
        }
    }

    /// Returns why a node may not be disrupted now, or `None`.
    pub fn refusal(&self, candidate: &Candidate<'_>, reason: Reason) -> Option<Verdict> {
        self.verdict_for(&id_of(candidate), &candidate.pool, reason, true)
    }

    fn verdict_for(
        &self,
        id: &ClaimId,
        pool: &PoolName,
        reason: Reason,
        at_once: bool,
    ) -> Option<Verdict> {
        let Some((budgets, windows)) = self.rules_of(pool) else {
            return Some(Verdict::NoPool);
        };
        self.verdict_for_pool(windows, pool, reason)
            .or_else(|| self.exhausted_budget(budgets, id, pool, reason, at_once))
    }

    /// Returns the budgets and maintenance windows of a pool, or the defaults if the pool no longer
    /// exists. `None` if nodes of such pools are kept.
    fn rules_of(&self, name: &PoolName) -> Option<(&'a [Budget], &'a [Maintenance])> {
        let cluster = self.disruption_view.cluster;
        if let Some(pool) = cluster.pool(name.as_str()) {
            return Some((&pool.disruption.budgets, &pool.disruption.windows));
        }
        let leave = cluster.safeguards.removed_pools == RemovedPools::Drain;
        leave.then_some((&REMOVED_POOL[..], &[][..]))
    }

    /// Returns a verdict that applies to all nodes of a pool.
    fn verdict_for_pool(
        &self,
        windows: &[Maintenance],
        pool: &PoolName,
        reason: Reason,
    ) -> Option<Verdict> {
        let (notes, now) = (self.disruption_view.notes, self.now);
        if let Some(why) = &notes.fault {
            return Some(Verdict::LeaseUnreadable(why.clone()));
        }
        if let Some((is_cluster, pause)) = notes.pause_of(pool, now) {
            let of = match is_cluster {
                true => RuleScope::Cluster,
                false => RuleScope::Pool,
            };
            let (until, reason) = (pause.until, pause.reason.clone());
            return Some(Verdict::Paused { of, until, reason });
        }
        let disruption = &self.disruption_view.cluster.disruption;
        let windows = [windows, &disruption.windows[..]];
        if !maintenance_windows::is_open(&windows, reason, now) {
            let key = (pool.clone(), reason);
            let mut openings = self.openings.borrow_mut();
            let opens = *openings
                .entry(key)
                .or_insert_with(|| maintenance_windows::next_opening(&windows, reason, now));
            return Some(Verdict::Window { opens });
        }
        let cools = cool_down_end(&disruption.cool_down, &self.disruption_view.recent, now);
        let cools = cools.filter(|_| reason.is_consolidation());
        cools.map(|(until, after)| Verdict::CoolDown { until, after })
    }

    /// The budgets of a pool, its cluster and the fleet, with the disruptions that each of these
    /// levels counts.
    fn budget_levels(
        &self,
        budgets: &'a [Budget],
        pool: &PoolName,
    ) -> [(RuleScope, &'a [Budget], Counts); 2] {
        let counts = self.pools.get(pool).copied().unwrap_or_default();
        let cluster = &self.disruption_view.cluster.disruption.budgets[..];
        [(RuleScope::Pool, budgets, counts), (RuleScope::Cluster, cluster, self.cluster)]
    }

    /// Returns the tightest exhausted budget, if any. `at_once` selects whether limits on
    /// concurrent disruptions are checked in addition to rates.
    fn exhausted_budget(
        &self,
        budgets: &'a [Budget],
        id: &ClaimId,
        pool: &PoolName,
        reason: Reason,
        at_once: bool,
    ) -> Option<Verdict> {
        let mut levels = Vec::from(self.budget_levels(budgets, pool));
        if let Some(fleet) = self.disruption_view.fleet {
            let all = Counts {
                total: self.cluster.total + fleet.others.nodes,
                disrupted: self.cluster.disrupted + fleet.others.disrupted,
            };
            levels.push((RuleScope::Fleet, &fleet.budgets[..], all));
        }
        let mut tightest: Option<(usize, Verdict)> = None;
        for (scope, budgets, counts) in levels {
            for budget in budgets {
                let by_count = at_once
                    .then(|| exhausted_count(budget, scope, counts, reason, self.now))
                    .flatten();
                let exhausted =
                    by_count.or_else(|| self.exhausted_rate(budget, scope, id, pool, reason));
                let Some((allowed, verdict)) = exhausted else {
                    continue;
                };
                if tightest.as_ref().is_none_or(|(least, _)| allowed < *least) {
                    tightest = Some((allowed, verdict));
                }
            }
        }
        tightest.map(|(_, verdict)| verdict)
    }

    fn exhausted_rate(
        &self,
        budget: &Budget,
        of: RuleScope,
        id: &ClaimId,
        pool: &PoolName,
        reason: Reason,
    ) -> Option<(usize, Verdict)> {
        let rate = budget.rate_for(reason)?;
        if !budget.applies_to(reason, self.now) {
            return None;
        }
        if let Some(why) = &self.disruption_view.notes.garbled {
            return Some((0, Verdict::LeaseUnreadable(why.clone())));
        }
        let times = self.disruptions_within(&budget.reasons, of, id, pool);
        let back = rate_allows_at(rate, &times, self.now)?;
        let allowed = rate.nodes as usize;
        let verdict = Verdict::Budget {
            of,
            rate: Some(rate),
            allowed,
            opens: Some(allows_more_at(back, budget, self.now)),
        };
        Some((allowed, verdict))
    }

    /// Returns the disruption times that a rate counts, without those of the given node: repeated
    /// disruptions of one node count once.
    fn disruptions_within(
        &self,
        reasons: &[Reason],
        scope: RuleScope,
        node: &ClaimId,
        pool: &PoolName,
    ) -> Vec<Timestamp> {
        let known = self.let_go.iter().filter(|(id, gone)| {
            *id != node
                && (scope != RuleScope::Pool || gone.pool == *pool)
                && applies_to_reason(reasons, gone.reason)
        });
        let mut all: Vec<Timestamp> = known.map(|(_, record)| record.at).collect();
        let fleet = self.disruption_view.fleet;
        if let Some(fleet) = fleet.filter(|_| scope == RuleScope::Fleet) {
            let others = fleet.others.let_go.iter();
            let others = others.filter(|(_, reason)| applies_to_reason(reasons, *reason));
            all.extend(others.map(|(at, _)| *at));
        }
        all
    }
}

/// Returns whether a node is not disrupted yet. After a cancelled disruption, a node counts as
/// disrupted until its taint is removed or no longer expected.
fn is_undisrupted(candidate: &Candidate<'_>, now: Timestamp) -> bool {
    let node = candidate.node;
    let until = candidate.claim.and_then(|claim| claim.closing_until);
    let closed = node.has_disrupted_taint() || until.is_some_and(|until| until > now);
    node.ready && node.deleting.is_none() && !closed
}

/// The ID under which the disruption of a node is recorded.
fn id_of(candidate: &Candidate<'_>) -> ClaimId {
    let claim = candidate.claim.map(|claim| claim.record.id.clone());
    claim.unwrap_or_else(|| ClaimId::from(candidate.node.name.as_str()))
}

/// Returns the concurrent limit of a budget if it is reached.
fn exhausted_count(
    budget: &Budget,
    scope: RuleScope,
    counts: Counts,
    reason: Reason,
    now: Timestamp,
) -> Option<(usize, Verdict)> {
    let allowed = budget.allowed_nodes(reason, counts.total, now)?;
    if counts.disrupted < allowed {
        return None;
    }
    let verdict =
        Verdict::Budget { of: scope, rate: None, allowed, opens: closes_after(budget, now) };
    Some((allowed, verdict))
}

/// Returns when a budget is no longer active, or `None` if it is always active.
fn closes_after(budget: &Budget, now: Timestamp) -> Option<Timestamp> {
    budget.during.as_ref()?.closes_after(now)
}

/// Returns when an exhausted budget allows more disruptions: at `back`, or when the budget is no
/// longer active.
fn allows_more_at(back: Timestamp, budget: &Budget, now: Timestamp) -> Timestamp {
    closes_after(budget, now).map_or(back, |closes| back.min(closes))
}

/// Returns the time at which an exhausted rate allows the next disruption.
pub fn rate_allows_at(rate: Rate, times: &[Timestamp], now: Timestamp) -> Option<Timestamp> {
    let mut back: Vec<Timestamp> = times
        .iter()
        .map(|at| at.checked_add(rate.per).unwrap_or(Timestamp::MAX))
        .filter(|at| *at > now)
        .collect();
    let excess = back.len().checked_sub(rate.nodes as usize)?;
    (excess < back.len()).then(|| *back.select_nth_unstable(excess).1)
}
