//! Whether one more node may begin to leave by our own choice: pauses, times for maintenance,
//! cool-downs, and the budgets of its pool, its cluster and all clusters. All have to agree.
//! It must not know why a node is to leave, beyond the reason that budgets name.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::coordination::lease_annotations::DisruptionRecord;
use crate::disruption::cooldown::cools_until;
use crate::disruption::maintenance_windows;
use crate::disruption::verdict::{RuleScope, Verdict};
use crate::model::cluster::RemovedPools;
use crate::model::id::{ClaimId, NodeName, PoolName};
use crate::model::pool::{Budget, BudgetNodes, Maintenance, Rate, Reason, names};
use crate::state::candidates::{Candidate, DisruptionView};

/// The budget of a pool that is not configured any more: the default one.
static REMOVED_POOL: [Budget; 1] = [Budget {
    nodes: BudgetNodes::Percent(10),
    rate: None,
    reasons: Vec::new(),
    during: None,
}];

/// What budgets leave, while nodes are let go one after another. A node that leaves counts for all
/// reasons, whichever it leaves for. Source: spec/disruption.md §1.6.
#[derive(Clone, Debug)]
pub struct Budgets<'a> {
    roster: &'a DisruptionView<'a>,
    now: Timestamp,
    pools: BTreeMap<PoolName, Counts>,
    cluster: Counts,
    let_go: BTreeMap<ClaimId, DisruptionRecord>,
    gone: BTreeSet<NodeName>,
    /// When windows open that are shut now, by pool and reason: the nodes of a pool share it.
    openings: RefCell<BTreeMap<(PoolName, Reason), Option<Timestamp>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Nodes that budgets are shares of: those that are initialized or leaving.
    total: usize,
    /// Those that are disrupted already, being not ready, deleted by somebody, or leaving.
    disrupted: usize,
}

impl<'a> Budgets<'a> {
    /// The budgets of all pools, with what leaves already taken off.
    pub fn new(roster: &'a DisruptionView<'a>, now: Timestamp) -> Self {
        let mut pools: BTreeMap<PoolName, Counts> = BTreeMap::new();
        for (pool, count) in &roster.leaving {
            let own = pools.entry(pool.clone()).or_default();
            own.total += count;
            own.disrupted += count;
        }
        for candidate in &roster.candidates {
            // One that is not initialized yet counts for nothing.
            if candidate.initialized.is_some() {
                let own = pools.entry(candidate.pool.clone()).or_default();
                own.total += 1;
                own.disrupted += usize::from(!is_whole(candidate, now));
            }
        }
        let mut cluster = Counts::default();
        for own in pools.values() {
            cluster.total += own.total;
            cluster.disrupted += own.disrupted;
        }
        Self {
            roster,
            now,
            pools,
            cluster,
            let_go: roster.let_go.clone(),
            gone: BTreeSet::new(),
            openings: RefCell::default(),
        }
    }

    /// How many nodes of the cluster count for budgets, and how many of them are leaving or not
    /// ready.
    pub fn counted(&self) -> (usize, usize) {
        (self.cluster.total, self.cluster.disrupted)
    }

    /// Whether a node was let go already.
    pub fn has_let_go(&self, candidate: &Candidate<'_>) -> bool {
        self.gone.contains(&candidate.node.name)
    }

    /// Lets a node go, or says why not.
    pub fn take(&mut self, candidate: &Candidate<'_>, reason: Reason) -> Result<(), Verdict> {
        if let Some(verdict) = self.refusal(candidate, reason) {
            return Err(verdict);
        }
        self.let_go(candidate);
        self.note(id_of(candidate), candidate.pool.clone(), reason);
        Ok(())
    }

    /// Lets a node go that is counted among those that leave already, as far as rates, pauses and
    /// times for maintenance let it, or says why not.
    pub fn take_leaving(
        &mut self,
        id: &ClaimId,
        pool: &PoolName,
        reason: Reason,
    ) -> Result<(), Verdict> {
        if let Some(verdict) = self.weigh((id, pool), reason, false) {
            return Err(verdict);
        }
        self.note(id.clone(), pool.clone(), reason);
        Ok(())
    }

    fn note(&mut self, id: ClaimId, pool: PoolName, reason: Reason) {
        let at = self.now;
        self.let_go
            .insert(id, DisruptionRecord { pool, reason, at });
    }

    /// Takes back that a node was let go.
    pub fn give_back(&mut self, candidate: &Candidate<'_>) {
        if self.gone.remove(&candidate.node.name) {
            let less = usize::from(is_whole(candidate, self.now));
            let counts = self.pools.entry(candidate.pool.clone()).or_default();
            counts.disrupted -= less;
            self.cluster.disrupted -= less;
            // What it was remembered for before counts on.
            let id = id_of(candidate);
            match self.roster.let_go.get(&id).cloned() {
                Some(before) => self.let_go.insert(id, before),
                None => self.let_go.remove(&id),
            };
        }
    }

    /// Whether more nodes of a pool are disrupted by now than may be at once, one among them that
    /// leaves and bears no taint yet: others were lost since it was let go.
    pub fn overrun(&self, pool: &PoolName, reason: Reason) -> Option<Verdict> {
        let (budgets, _) = self.rules(pool)?;
        self.levels(budgets, pool).into_iter().find_map(|level| {
            let (of, budgets, mut others) = level;
            others.disrupted = others.disrupted.saturating_sub(1);
            let mut shut = budgets.iter();
            let shut = shut.find_map(|own| count_shut(own, (of, others), reason, self.now));
            shut.map(|(_, verdict)| verdict)
        })
    }

    /// Takes note of a node that was to leave and stays.
    pub fn spare(&mut self, pool: &PoolName) {
        let own = self.pools.entry(pool.clone()).or_default();
        own.disrupted = own.disrupted.saturating_sub(1);
        self.cluster.disrupted = self.cluster.disrupted.saturating_sub(1);
    }

    /// Takes note of a node that leaves whatever budgets say.
    pub fn let_go(&mut self, candidate: &Candidate<'_>) {
        if self.gone.insert(candidate.node.name.clone()) {
            let more = usize::from(is_whole(candidate, self.now));
            let counts = self.pools.entry(candidate.pool.clone()).or_default();
            counts.disrupted += more;
            self.cluster.disrupted += more;
        }
    }

    /// Why a node may not be let go now, if it may not.
    pub fn refusal(&self, candidate: &Candidate<'_>, reason: Reason) -> Option<Verdict> {
        self.weigh((&id_of(candidate), &candidate.pool), reason, true)
    }

    fn weigh(&self, who: (&ClaimId, &PoolName), reason: Reason, at_once: bool) -> Option<Verdict> {
        let Some((budgets, windows)) = self.rules(who.1) else {
            return Some(Verdict::NoPool);
        };
        let shut = || self.shut_by_budget(budgets, who, reason, at_once);
        self.stopped(windows, who.1, reason).or_else(shut)
    }

    /// What a pool says of budgets and times, or what holds where it is gone; none where its nodes
    /// stay then.
    fn rules(&self, name: &PoolName) -> Option<(&'a [Budget], &'a [Maintenance])> {
        let cluster = self.roster.cluster;
        if let Some(own) = cluster.pool(name.as_str()) {
            return Some((&own.disruption.budgets, &own.disruption.windows));
        }
        let leave = cluster.brakes.removed_pools == RemovedPools::Drain;
        leave.then_some((&REMOVED_POOL[..], &[][..]))
    }

    /// What stops all nodes of a pool alike.
    fn stopped(&self, windows: &[Maintenance], pool: &PoolName, reason: Reason) -> Option<Verdict> {
        let (cluster, notes, now) = (self.roster.cluster, self.roster.notes, self.now);
        if let Some(why) = &notes.fault {
            return Some(Verdict::Unread(why.clone()));
        }
        if let Some((whole, pause)) = notes.pause_of(pool, now) {
            let of = if whole {
                RuleScope::Cluster
            } else {
                RuleScope::Pool
            };
            let (until, reason) = (pause.until, pause.reason.clone());
            return Some(Verdict::Paused { of, until, reason });
        }
        let own = &cluster.disruption;
        let windows = [windows, &own.windows[..]];
        if !maintenance_windows::is_open(&windows, reason, now) {
            let key = (pool.clone(), reason);
            let mut openings = self.openings.borrow_mut();
            let opens = openings.entry(key);
            let opens =
                *opens.or_insert_with(|| maintenance_windows::next_opening(&windows, reason, now));
            return Some(Verdict::Window { opens });
        }
        let cools = cools_until(&own.cool_down, &self.roster.recent, now);
        let cools = cools.filter(|_| reason.is_consolidation());
        cools.map(|(until, after)| Verdict::Cooling { until, after })
    }

    /// The budgets of a pool and of its cluster, with what counts for each.
    fn levels(
        &self,
        budgets: &'a [Budget],
        pool: &PoolName,
    ) -> [(RuleScope, &'a [Budget], Counts); 2] {
        let own = self.pools.get(pool).copied().unwrap_or_default();
        let cluster = &self.roster.cluster.disruption.budgets[..];
        [
            (RuleScope::Pool, budgets, own),
            (RuleScope::Cluster, cluster, self.cluster),
        ]
    }

    /// The tightest budget that is used up, if any is; `at_once` says whether numbers at once
    /// count, beside rates.
    fn shut_by_budget(
        &self,
        budgets: &'a [Budget],
        who: (&ClaimId, &PoolName),
        reason: Reason,
        at_once: bool,
    ) -> Option<Verdict> {
        let mut levels = Vec::from(self.levels(budgets, who.1));
        if let Some(fleet) = self.roster.fleet {
            let all = Counts {
                total: self.cluster.total + fleet.others.nodes,
                disrupted: self.cluster.disrupted + fleet.others.disrupted,
            };
            levels.push((RuleScope::Fleet, &fleet.budgets[..], all));
        }
        let mut tightest: Option<(usize, Verdict)> = None;
        for (of, budgets, counts) in levels {
            for budget in budgets {
                let by_count = || count_shut(budget, (of, counts), reason, self.now);
                let by_count = at_once.then(by_count).flatten();
                let shut = by_count.or_else(|| self.shut_by_rate(budget, of, who, reason));
                let Some((allowed, verdict)) = shut else {
                    continue;
                };
                if tightest.as_ref().is_none_or(|(least, _)| allowed < *least) {
                    tightest = Some((allowed, verdict));
                }
            }
        }
        tightest.map(|(_, verdict)| verdict)
    }

    fn shut_by_rate(
        &self,
        budget: &Budget,
        of: RuleScope,
        who: (&ClaimId, &PoolName),
        reason: Reason,
    ) -> Option<(usize, Verdict)> {
        let rate = budget.rate_for(reason)?;
        if !budget.holds(reason, self.now) {
            return None;
        }
        if let Some(why) = &self.roster.notes.garbled {
            return Some((0, Verdict::Unread(why.clone())));
        }
        let gone = self.gone_within(&budget.reasons, of, who);
        let back = rate_shut(rate, &gone, self.now)?;
        let allowed = rate.nodes as usize;
        let verdict = Verdict::Budget {
            of,
            rate: Some(rate),
            allowed,
            opens: Some(sooner(back, budget, self.now)),
        };
        Some((allowed, verdict))
    }

    /// When nodes were let go that count for a rate, beside the one in question: one that was let
    /// go, stayed, and is let go again is one.
    fn gone_within(
        &self,
        reasons: &[Reason],
        of: RuleScope,
        (own, pool): (&ClaimId, &PoolName),
    ) -> Vec<Timestamp> {
        let known = self.let_go.iter().filter(|(id, gone)| {
            *id != own
                && (of != RuleScope::Pool || gone.pool == *pool)
                && names(reasons, gone.reason)
        });
        let mut all: Vec<Timestamp> = known.map(|(_, gone)| gone.at).collect();
        if let Some(fleet) = self.roster.fleet.filter(|_| of == RuleScope::Fleet) {
            let others = fleet.others.let_go.iter();
            let others = others.filter(|(_, reason)| names(reasons, *reason));
            all.extend(others.map(|(at, _)| *at));
        }
        all
    }
}

/// Whether a node is disrupted by nothing yet. One that was to leave and stays is closed until its
/// taint is gone, or will not come any more.
fn is_whole(candidate: &Candidate<'_>, now: Timestamp) -> bool {
    let node = candidate.node;
    let until = candidate.claim.and_then(|own| own.closing_until);
    let closed = node.has_disrupted_taint() || until.is_some_and(|until| until > now);
    node.ready && node.deleting.is_none() && !closed
}

/// What a node that was let go is remembered by.
fn id_of(candidate: &Candidate<'_>) -> ClaimId {
    let claim = candidate.claim.map(|own| own.record.id.clone());
    claim.unwrap_or_else(|| ClaimId::from(candidate.node.name.as_str()))
}

/// How many a budget allows at once, where they are leaving already.
fn count_shut(
    budget: &Budget,
    (of, counts): (RuleScope, Counts),
    reason: Reason,
    now: Timestamp,
) -> Option<(usize, Verdict)> {
    let allowed = budget.allowed(reason, counts.total, now)?;
    let closes = budget.during.as_ref();
    let verdict = || Verdict::Budget {
        of,
        rate: None,
        allowed,
        opens: closes.and_then(|own| own.closes_after(now)),
    };
    (counts.disrupted >= allowed).then(|| (allowed, verdict()))
}

/// When a budget that is shut until a time lets go on: then, or when it holds no more.
fn sooner(back: Timestamp, budget: &Budget, now: Timestamp) -> Timestamp {
    let closes = budget.during.as_ref().and_then(|own| own.closes_after(now));
    closes.map_or(back, |closes| back.min(closes))
}

/// When a rate lets one more go, where it has let go all it may.
pub fn rate_shut(rate: Rate, gone: &[Timestamp], now: Timestamp) -> Option<Timestamp> {
    let back = |at: &Timestamp| at.checked_add(rate.per).unwrap_or(Timestamp::MAX);
    let mut back: Vec<Timestamp> = gone.iter().map(back).filter(|at| *at > now).collect();
    let excess = back.len().checked_sub(rate.nodes as usize)?;
    (excess < back.len()).then(|| *back.select_nth_unstable(excess).1)
}
