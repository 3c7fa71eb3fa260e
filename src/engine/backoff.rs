//! When to try again: growing waits with seeded jitter, capped.
//! It must not know what is tried.

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

/// First wait.
const FIRST_MS: i64 = 500;
/// Doubling stops here: 500 ms × 2^7 is 64 s.
const DOUBLINGS_MAX: u32 = 7;

/// First wait of an eviction, and the longest. Source: spec/disruption.md §4.4.
const EVICTION_MS: (i64, i64) = (100, 10_000);

/// Outrigger tries a denied right again after this long: an operator may have granted it.
const DENIED_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Whether a right is denied that the daemon can go on without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Denied {
    since: Option<Timestamp>,
}

impl Denied {
    /// Notes that the API server denied it.
    pub fn set(&mut self, now: Timestamp) {
        self.since = Some(now);
    }

    /// Forgets a denial that is five minutes old.
    pub fn expire(&mut self, now: Timestamp) {
        let is_fresh = |at: &Timestamp| now.duration_since(*at) < DENIED_FOR;
        self.since = self.since.filter(is_fresh);
    }

    /// Whether it is denied, as far as is known.
    pub fn holds(&self) -> bool {
        self.since.is_some()
    }
}

/// Attempts so far and when the next may be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    attempts: u32,
    at: Option<Timestamp>,
}

impl Backoff {
    /// Notes a failure: the next attempt waits twice as long, give or take a fifth.
    pub fn failed(&mut self, now: Timestamp, rng: &mut Rng) {
        self.wait(FIRST_MS << self.attempts.min(DOUBLINGS_MAX), now, rng);
    }

    /// Notes that a pod was asked to go: while it is still there it is asked again, as one whose
    /// disruption budget may have room by then.
    pub fn evicted(&mut self, now: Timestamp, rng: &mut Rng) {
        let (first, longest) = EVICTION_MS;
        self.wait(
            (first << self.attempts.min(DOUBLINGS_MAX)).min(longest),
            now,
            rng,
        );
    }

    fn wait(&mut self, wait: i64, now: Timestamp, rng: &mut Rng) {
        let jitter = rng.i64(-wait / 5..=wait / 5);
        self.attempts = self.attempts.saturating_add(1);
        self.at = now
            .checked_add(SignedDuration::from_millis(wait + jitter))
            .ok();
    }

    /// Whether the next attempt may be made.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.at.is_none_or(|at| at <= now)
    }

    /// When the next attempt may be made, if one failed.
    pub fn next(&self) -> Option<Timestamp> {
        self.at
    }
}
