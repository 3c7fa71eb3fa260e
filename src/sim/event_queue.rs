//! Events by time. Events with the same time are in the order in which they were added.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// A queue of future events.
#[derive(Clone, Debug)]
pub struct Timers<T> {
    queue: BTreeMap<(Timestamp, u64), T>,
    asked: u64,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self { queue: BTreeMap::new(), asked: 0 }
    }
}

impl<T> Timers<T> {
    /// Adds an event at a time.
    pub fn add_at(&mut self, at: Timestamp, event: T) {
        self.asked += 1;
        self.queue.insert((at, self.asked), event);
    }

    /// Adds an event at a time after `now`.
    pub fn add_after(&mut self, now: Timestamp, wait: SignedDuration, event: T) {
        self.add_at(time_after(now, wait), event);
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes and returns the next event due at `now`, with its time.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<(Timestamp, T)> {
        self.next_at().filter(|at| *at <= now)?;
        self.queue.pop_first().map(|((at, _), event)| (at, event))
    }

    /// Keeps only events for which `wanted` returns true.
    pub fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        self.queue.retain(|_, event| wanted(event));
    }
}

/// Adds a duration to `now`. Returns the maximum time on overflow.
pub fn time_after(now: Timestamp, wait: SignedDuration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}
