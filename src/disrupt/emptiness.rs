//! Nodes on which nothing but daemons runs, and has not for as long as their pool asks.
//! It must not know the other reasons for leaving.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::disrupt::verdict::{Kept, Verdict};
use crate::model::id::PoolName;
use crate::model::pool::{Pool, Reason};
use crate::state::snapshot::{Candidate, Roster};

/// Nodes that may leave because they are empty, longest empty first, and why the others stay.
pub fn empty_nodes(roster: &Roster<'_>, now: Timestamp) -> (Vec<Candidate>, Vec<Kept>) {
    let (mut due, mut kept) = (Vec::new(), Vec::new());
    for candidate in &roster.candidates {
        let pool = roster.cluster.pool(candidate.pool.as_str());
        let held = roster.held.get(&candidate.node);
        match weigh(candidate, pool, held, now) {
            None => due.push(candidate.clone()),
            Some(verdict) => kept.push(Kept {
                node: candidate.node.clone(),
                verdict,
            }),
        }
    }
    due.sort_by(|a, b| (a.changed, &a.node).cmp(&(b.changed, &b.node)));
    let mut left: BTreeMap<PoolName, (usize, usize)> = BTreeMap::new();
    due.retain(|candidate| {
        let (allowed, left) = left
            .entry(candidate.pool.clone())
            .or_insert_with(|| allowance(roster, &candidate.pool, now));
        if *left > 0 {
            *left -= 1;
            return true;
        }
        let verdict = Verdict::Budget { allowed: *allowed };
        kept.push(Kept {
            node: candidate.node.clone(),
            verdict,
        });
        false
    });
    kept.sort_by(|a, b| a.node.cmp(&b.node));
    (due, kept)
}

/// When the first node that is too early now may be looked at again.
pub fn next_due(kept: &[Kept]) -> Option<Timestamp> {
    kept.iter()
        .filter_map(|kept| match kept.verdict {
            Verdict::TooEarly { until } => Some(until),
            _ => None,
        })
        .min()
}

fn weigh(
    candidate: &Candidate,
    pool: Option<&Pool>,
    held: Option<&String>,
    now: Timestamp,
) -> Option<Verdict> {
    let Some(pool) = pool else {
        return Some(Verdict::NoPool);
    };
    if pool.replicas.is_some() {
        return Some(Verdict::Static);
    }
    let (Some(_), Some(changed)) = (candidate.initialized, candidate.changed) else {
        return Some(Verdict::NotInitialized);
    };
    if candidate.pods > 0 {
        return Some(Verdict::InUse {
            pods: candidate.pods,
        });
    }
    if candidate.nominated {
        return Some(Verdict::Nominated);
    }
    if let Some(buffer) = held {
        return Some(Verdict::Buffer(buffer.clone()));
    }
    if let Some(why) = &candidate.protected {
        return Some(Verdict::Protected(why.clone()));
    }
    let Some(after) = pool.disruption.consolidate_after else {
        return Some(Verdict::Never);
    };
    let until = changed.checked_add(after).unwrap_or(Timestamp::MAX);
    (until > now).then_some(Verdict::TooEarly { until })
}

/// How many nodes of the pool may be leaving at once, and how many more that lets go.
fn allowance(roster: &Roster<'_>, name: &PoolName, now: Timestamp) -> (usize, usize) {
    let leaving = roster.leaving.get(name).copied().unwrap_or(0);
    // Nodes that are not initialized count for nothing, and those that are not ready are disrupted
    // already (spec/disruption.md §3.2).
    let settled = roster.candidates.iter();
    let settled = settled.filter(|own| own.pool == *name && own.initialized.is_some());
    let total = settled.clone().count() + leaving;
    let unready = settled.filter(|own| !own.ready).count();
    let pool = roster.cluster.pool(name.as_str());
    let allowed = pool.map_or(0, |pool| {
        pool.allowed_disruptions(Reason::Empty, total, now)
    });
    (allowed, allowed.saturating_sub(leaving + unready))
}
