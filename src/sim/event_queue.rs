//! What is due when: a queue by time, and by the order of asking within one moment.
//! It must not know what is due.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// Things to come.
#[derive(Clone, Debug)]
pub struct Timers<T> {
    queue: BTreeMap<(Timestamp, u64), T>,
    asked: u64,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self {
            queue: BTreeMap::new(),
            asked: 0,
        }
    }
}

impl<T> Timers<T> {
    /// Asks for something at a time.
    pub fn at(&mut self, at: Timestamp, what: T) {
        self.asked += 1;
        self.queue.insert((at, self.asked), what);
    }

    /// Asks for something some time after `now`.
    pub fn after(&mut self, now: Timestamp, wait: SignedDuration, what: T) {
        self.at(later(now, wait), what);
    }

    /// When the next thing is due.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next thing that is due at `now`, and when it was.
    pub fn due(&mut self, now: Timestamp) -> Option<(Timestamp, T)> {
        self.next_at().filter(|at| *at <= now)?;
        self.queue.pop_first().map(|((at, _), what)| (at, what))
    }

    /// Keeps only what `wanted` says.
    pub fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        self.queue.retain(|_, what| wanted(what));
    }
}

/// `now` and some time; the end of time where there is no such moment.
pub fn later(now: Timestamp, wait: SignedDuration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}
