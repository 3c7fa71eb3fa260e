//! How many nodes of each pool may be leaving at once, and how many more that lets go now.
//! It must not know why a node is to leave, beyond the reason that budgets name.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::disrupt::verdict::Verdict;
use crate::model::id::{NodeName, PoolName};
use crate::model::pool::Reason;
use crate::state::roster::{Candidate, Roster};

/// What budgets leave, while nodes are let go one after another. A node that leaves counts for all
/// reasons, whichever it leaves for. Source: spec/disruption.md §1.6.
#[derive(Clone, Debug)]
pub struct Budgets<'a> {
    roster: &'a Roster<'a>,
    now: Timestamp,
    pools: BTreeMap<PoolName, Counts>,
    gone: BTreeSet<NodeName>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Nodes that budgets are shares of: those that are initialized or leaving.
    total: usize,
    /// Those that are disrupted already, being not ready or leaving.
    disrupted: usize,
}

impl<'a> Budgets<'a> {
    /// The budgets of all pools, with what leaves already taken off.
    pub fn new(roster: &'a Roster<'a>, now: Timestamp) -> Self {
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
                own.disrupted += usize::from(!candidate.node.ready);
            }
        }
        let gone = BTreeSet::new();
        Self {
            roster,
            now,
            pools,
            gone,
        }
    }

    /// Whether a node was let go already.
    pub fn has_let_go(&self, candidate: &Candidate<'_>) -> bool {
        self.gone.contains(&candidate.node.name)
    }

    /// Lets a node go, or says why not.
    pub fn take(&mut self, candidate: &Candidate<'_>, reason: Reason) -> Result<(), Verdict> {
        let counts = self.pools.entry(candidate.pool.clone()).or_default();
        let own = self.roster.cluster.pool(candidate.pool.as_str());
        let allowed = own.map_or(0, |own| {
            own.allowed_disruptions(reason, counts.total, self.now)
        });
        if counts.disrupted >= allowed {
            return Err(Verdict::Budget { allowed });
        }
        self.let_go(candidate);
        Ok(())
    }

    /// Takes back that a node was let go.
    pub fn give_back(&mut self, candidate: &Candidate<'_>) {
        if self.gone.remove(&candidate.node.name) {
            let counts = self.pools.entry(candidate.pool.clone()).or_default();
            counts.disrupted -= usize::from(candidate.node.ready);
        }
    }

    /// Takes note of a node that leaves whatever budgets say.
    pub fn let_go(&mut self, candidate: &Candidate<'_>) {
        if self.gone.insert(candidate.node.name.clone()) {
            let counts = self.pools.entry(candidate.pool.clone()).or_default();
            counts.disrupted += usize::from(candidate.node.ready);
        }
    }
}
