//! The job of the daemon that wakes the engine when a sweep is due. Faults delay or repeat a
//! wake-up, or lose it.

use jiff::Timestamp;

use crate::model::sweep::SweepKind;
use crate::sim::event_queue::time_after;
use crate::sim::{ScheduledEvent, World};

impl World {
    /// Schedules the wake-ups for the next sweeps. Draws nothing in a cluster without sweeps.
    pub(super) fn schedule_ticks(&mut self) {
        let Some(engine) = &self.engine else {
            return;
        };
        let sweeps = engine.state().sweeps.iter();
        let next: Vec<(SweepKind, Timestamp)> =
            sweeps.filter_map(|(kind, sweep)| Some((kind, sweep.next()?))).collect();
        for (kind, at) in next {
            if at <= self.now || self.ticks.get(&kind) == Some(&at) {
                continue;
            }
            self.ticks.insert(kind, at);
            for wait in self.faults.draw_tick(at) {
                self.timers.add_at(time_after(at, wait), ScheduledEvent::Tick);
            }
        }
    }
}
