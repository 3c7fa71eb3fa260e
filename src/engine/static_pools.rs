//! Decides when to plan nodes for static pools and buffers, and tracks the reported shortfalls.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::id::PoolName;
use crate::scheduling::static_pools::{Shortfall, StaticDemand};
use crate::state::State;

/// Unavailable capacity is planned again after this time: limits or offerings may have changed.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// Minimum interval between plans for newly missing nodes: a launch may be refused immediately.
const APART: SignedDuration = SignedDuration::from_secs(1);

/// Missing nodes of static pools, and the last plan for them.
#[derive(Clone, Debug, Default)]
pub(super) struct StaticSchedule {
    /// Number of nodes still missing after the last plan.
    lacking: BTreeMap<PoolName, usize>,
    last: Option<Timestamp>,
    told: BTreeMap<StaticDemand, Shortfall>,
    /// Time of the next plan for buffers. `None` if unknown.
    room: Option<Timestamp>,
}

impl StaticSchedule {
    /// Returns when to plan the missing nodes. `None` if none are missing.
    pub(super) fn next_plan_at(&self, lacking: &BTreeMap<PoolName, usize>) -> Option<Timestamp> {
        if lacking.is_empty() {
            return None;
        }
        let wait = if self.has_changed(lacking) { APART } else { AGAIN };
        let due = self.last.and_then(|at| at.checked_add(wait).ok());
        Some(due.unwrap_or(Timestamp::MIN))
    }

    /// Returns whether the missing nodes have changed since the last plan.
    pub(super) fn has_changed(&self, lacking: &BTreeMap<PoolName, usize>) -> bool {
        self.lacking != *lacking
    }

    /// Records a plan and the nodes that are still missing.
    pub(super) fn record_plan(&mut self, lacking: BTreeMap<PoolName, usize>, now: Timestamp) {
        self.lacking = lacking;
        self.last = Some(now);
    }

    /// Forgets the last results, because the available capacity may have changed.
    pub(super) fn forget_results(&mut self) {
        self.lacking.clear();
        self.room = None;
    }

    /// Returns when to plan the buffers. `None` if there are none.
    pub(super) fn next_buffer_plan_at(&self, state: &State) -> Option<Timestamp> {
        // After the last buffer is deleted, one more plan releases its capacity.
        let any = state.buffers().next().is_some() || !state.held.is_empty();
        any.then(|| self.room.unwrap_or(Timestamp::MIN))
    }

    /// Records a plan for buffers. Open buffers are planned again after a while, and all buffers
    /// when a window opens or closes.
    pub(super) fn record_buffer_plan(&mut self, state: &State, now: Timestamp) {
        let open = state.buffers().any(|buffer| buffer.is_open(now));
        let again = now.checked_add(AGAIN).ok().filter(|_| open);
        let windows = state.buffers().filter_map(|buffer| buffer.next_change(now));
        self.room = windows.chain(again).min().or(Some(Timestamp::MAX));
    }

    /// Returns new or changed shortfalls, and the ended ones. `room` is true if the plan includes
    /// buffers.
    pub(super) fn update_shortfalls(
        &mut self,
        short: &[Shortfall],
        room: bool,
    ) -> (Vec<Shortfall>, Vec<StaticDemand>) {
        let before = std::mem::take(&mut self.told);
        let now = short.iter().map(|shortfall| (shortfall.need.clone(), shortfall.clone()));
        let still =
            before.iter().filter(|(need, _)| !room && matches!(need, StaticDemand::Room(_)));
        self.told = still.map(|(need, shortfall)| (need.clone(), shortfall.clone())).collect();
        self.told.extend(now);
        let ended = before.keys().filter(|need| !self.told.contains_key(*need));
        let ended = ended.cloned().collect();
        (
            short
                .iter()
                .filter(|shortfall| before.get(&shortfall.need) != Some(*shortfall))
                .cloned()
                .collect(),
            ended,
        )
    }

    /// Reports the end of all shortfalls once no static capacity is required any more.
    pub(super) fn end_all_shortfalls(&mut self) -> Vec<StaticDemand> {
        std::mem::take(&mut self.told).into_keys().collect()
    }
}
