//! Limits the concurrent calls of each lane of commands.

use std::collections::BTreeMap;

use crate::engine::command::CommandLane;
use crate::model::cluster::Cluster;

/// The calls in flight of each lane, and their maximum.
#[derive(Debug)]
pub(super) struct LaneLimits {
    in_flight: BTreeMap<CommandLane, usize>,
    /// Maximum number of concurrent calls of a lane: `api.concurrency`.
    concurrency: usize,
    /// Launches that may wait for one call.
    launches_per_call: usize,
}

impl LaneLimits {
    pub(super) fn new(launches_per_call: usize, cluster: &Cluster) -> Self {
        let in_flight = BTreeMap::new();
        let mut limits = Self { in_flight, concurrency: 1, launches_per_call };
        limits.configure(cluster);
        limits
    }

    pub(super) fn configure(&mut self, cluster: &Cluster) {
        self.concurrency = cluster.api.concurrency.max(1) as usize;
    }

    /// Returns whether another call of a lane may begin.
    pub(super) fn has_room(&self, lane: CommandLane) -> bool {
        let limit = match lane {
            CommandLane::Launch => self.concurrency * self.launches_per_call,
            _ => self.concurrency,
        };
        self.in_flight.get(&lane).copied().unwrap_or_default() < limit
    }

    pub(super) fn begin_call(&mut self, lane: CommandLane) {
        *self.in_flight.entry(lane).or_default() += 1;
    }

    pub(super) fn end_call(&mut self, lane: CommandLane) {
        if let Some(calls) = self.in_flight.get_mut(&lane) {
            *calls = calls.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LaneLimits;
    use crate::engine::command::CommandLane::{Cluster as Requests, Launch, List, Terminate};
    use crate::model::cluster::Cluster;

    #[test]
    fn full_lane_does_not_fill_another_one() {
        let mut cluster = Cluster::default();
        cluster.api.concurrency = 2;
        let mut limits = LaneLimits::new(3, &cluster);
        for (lane, room) in [(Launch, 6), (Terminate, 2), (List, 2), (Requests, 2)] {
            for _ in 0..room {
                assert!(limits.has_room(lane), "{lane:?}");
                limits.begin_call(lane);
            }
            assert!(!limits.has_room(lane), "{lane:?}");
        }
        limits.end_call(Terminate);
        assert!(limits.has_room(Terminate) && !limits.has_room(Launch));
    }
}
