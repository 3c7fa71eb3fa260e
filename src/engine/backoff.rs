//! Exponential back-off with seeded jitter and a maximum.

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

/// First wait.
const FIRST_MS: i64 = 500;
/// Maximum number of doublings of the wait: 500 ms × 2^7 is 64 s.
const DOUBLINGS_MAX: u32 = 7;

/// Wait of a command that was not carried out because of a rate limit.
const RATE_LIMITED_MS: i64 = 5000;

/// Number of refused launches in a row that cause no wait, because each further launch requests
/// other offerings.
const FREE_REFUSALS: u32 = 8;

/// First and longest wait before an eviction is retried. Source: spec/disruption.md §4.4.
const EVICTION_MS: (i64, i64) = (100, 10_000);

/// Time until a denied request is tried again: an operator may have granted the permission.
const DENIED_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Returns the time after a wait, or [`Timestamp::MAX`] if the sum overflows.
pub(super) fn time_after(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// True if an optional permission is denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Denied {
    since: Option<Timestamp>,
}

impl Denied {
    /// Records that the API server denied a request.
    pub fn deny_at(&mut self, now: Timestamp) {
        self.since = Some(now);
    }

    /// Forgets a denial that is five minutes old.
    pub fn expire(&mut self, now: Timestamp) {
        self.since = self.since.filter(|at| now.duration_since(*at) < DENIED_FOR);
    }

    /// Returns whether the permission is denied, as far as the engine knows.
    pub fn is_denied(&self) -> bool {
        self.since.is_some()
    }
}

/// Number of attempts, and the time of the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    attempts: u32,
    at: Option<Timestamp>,
}

impl Backoff {
    /// Records a failure. The wait doubles each time, with a jitter of 20 percent.
    pub fn record_failure(&mut self, now: Timestamp, rng: &mut Rng) {
        self.schedule_next(FIRST_MS << self.attempts.min(DOUBLINGS_MAX), now, rng);
    }

    /// Records that a command was not carried out because of a rate limit. This is no failure: the
    /// rate limit learns, so the wait does not grow.
    pub fn record_rate_limit(&mut self, now: Timestamp, rng: &mut Rng) {
        let attempts = self.attempts;
        self.schedule_next(RATE_LIMITED_MS, now, rng);
        self.attempts = attempts;
    }

    /// Records a refused launch. After the first refusals, the wait doubles each time.
    pub fn record_refusal(&mut self, now: Timestamp, rng: &mut Rng) {
        match self.attempts.checked_sub(FREE_REFUSALS) {
            Some(waits) => self.schedule_next(FIRST_MS << waits.min(DOUBLINGS_MAX), now, rng),
            None => (self.attempts, self.at) = (self.attempts + 1, Some(now)),
        }
    }

    /// Returns the greater number of attempts and the later end of two back-offs.
    pub fn longer(self, other: Self) -> Self {
        Self { attempts: self.attempts.max(other.attempts), at: self.at.max(other.at) }
    }

    /// Records an eviction. If the pod still exists later, the eviction is retried like one that a
    /// PodDisruptionBudget refused.
    pub fn record_eviction(&mut self, now: Timestamp, rng: &mut Rng) {
        let (first, longest) = EVICTION_MS;
        self.schedule_next((first << self.attempts.min(DOUBLINGS_MAX)).min(longest), now, rng);
    }

    fn schedule_next(&mut self, wait: i64, now: Timestamp, rng: &mut Rng) {
        let jitter = rng.i64(-wait / 5..=wait / 5);
        self.attempts = self.attempts.saturating_add(1);
        self.at = now.checked_add(SignedDuration::from_millis(wait + jitter)).ok();
    }

    /// Returns whether the next attempt is due.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.at.is_none_or(|at| at <= now)
    }

    /// Returns the time of the next attempt, if an attempt has failed.
    pub fn next_attempt(&self) -> Option<Timestamp> {
        self.at
    }
}
