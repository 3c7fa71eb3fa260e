//! When nodes are planned for static pools and buffers, and what was last said of them.
//! It must not know how they are planned.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::id::PoolName;
use crate::scheduling::static_pools::{Shortfall, StaticDemand};
use crate::state::State;

/// What cannot be had is planned again this often: limits or stock may be others.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// Nodes that are newly missing are planned at most this often: a launch may be refused at once.
const APART: SignedDuration = SignedDuration::from_secs(1);

/// What static pools lack, and when that was last planned for.
#[derive(Clone, Debug, Default)]
pub(super) struct StaticSchedule {
    /// What they still lacked after the last plan.
    lacking: BTreeMap<PoolName, usize>,
    last: Option<Timestamp>,
    told: BTreeMap<StaticDemand, Shortfall>,
    /// When the room of buffers is looked after next; none where that is not known.
    room: Option<Timestamp>,
}

impl StaticSchedule {
    /// When nodes shall be planned for what is lacking now; none while nothing is.
    pub(super) fn due(&self, lacking: &BTreeMap<PoolName, usize>) -> Option<Timestamp> {
        if lacking.is_empty() {
            return None;
        }
        let wait = if self.is_news(lacking) { APART } else { AGAIN };
        let due = self.last.and_then(|at| at.checked_add(wait).ok());
        Some(due.unwrap_or(Timestamp::MIN))
    }

    /// Whether anything else was lacking after the last plan.
    pub(super) fn is_news(&self, lacking: &BTreeMap<PoolName, usize>) -> bool {
        self.lacking != *lacking
    }

    /// Nodes were planned, and this is lacking still.
    pub(super) fn planned(&mut self, lacking: BTreeMap<PoolName, usize>, now: Timestamp) {
        self.lacking = lacking;
        self.last = Some(now);
    }

    /// What is to be had may be something else now.
    pub(super) fn forget(&mut self) {
        self.lacking.clear();
        self.room = None;
    }

    /// When the room of buffers shall be planned; none where there are none.
    pub(super) fn room_due(&self, state: &State) -> Option<Timestamp> {
        // What was needed for buffers that are gone is looked after once more.
        let any = state.buffers().next().is_some() || !state.held.is_empty();
        any.then(|| self.room.unwrap_or(Timestamp::MIN))
    }

    /// The room of buffers was planned: open ones are looked after again in a while, and all of
    /// them when a window opens or closes.
    pub(super) fn kept_free(&mut self, state: &State, now: Timestamp) {
        let open = state.buffers().any(|own| own.is_open(now));
        let again = now.checked_add(AGAIN).ok().filter(|_| open);
        let windows = state.buffers().filter_map(|own| own.next_change(now));
        self.room = windows.chain(again).min().or(Some(Timestamp::MAX));
    }

    /// Those of them that were not told like this before, and what was short and is no more;
    /// whether room was planned, too.
    pub(super) fn news(
        &mut self,
        short: &[Shortfall],
        room: bool,
    ) -> (Vec<Shortfall>, Vec<StaticDemand>) {
        let before = std::mem::take(&mut self.told);
        let now = short.iter().map(|own| (own.need.clone(), own.clone()));
        let still = before
            .iter()
            .filter(|(need, _)| !room && matches!(need, StaticDemand::Room(_)));
        self.told = still
            .map(|(need, own)| (need.clone(), own.clone()))
            .collect();
        self.told.extend(now);
        let is_news = |own: &&Shortfall| before.get(&own.need) != Some(*own);
        let over = before.keys().filter(|need| !self.told.contains_key(*need));
        let over = over.cloned().collect();
        (short.iter().filter(is_news).cloned().collect(), over)
    }

    /// What was short, where nothing is wanted any more.
    pub(super) fn over(&mut self) -> Vec<StaticDemand> {
        std::mem::take(&mut self.told).into_keys().collect()
    }
}
