//! Limits the rate of requests: a burst and an average per second. Further requests wait in order.
//!
//! A limiter with an [`AdaptiveRate`] learns the rate that the server permits:
//!
//! ```text
//! throttled ─► rate × 0.5, no tokens left
//! 5 minutes without throttling ─► at least the first rate
//! 12 calls and 3 s without throttling, while calls wait
//!     ├─ below 80 % of the rate that was throttled ─► rate × 1.5
//!     └─ above ─► rate × 1.08, × 1.16, × 1.32 …
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

use crate::host::clock;

/// Additional time for a token that was expected in time.
const PATIENCE: Duration = Duration::from_secs(1);
/// Factor of the rate after a throttled call.
const CUT: f64 = 0.5;
/// Share of the throttled rate up to which the rate recovers quickly.
const NEAR: f64 = 0.8;
/// Factor of a step of the recovery.
const RECOVERY: f64 = 1.5;
/// First step above [`NEAR`]. Each further step without throttling is twice as large.
const PROBE: f64 = 0.08;
/// Calls and time without throttling before the rate grows.
const STEP_CALLS: u32 = 12;
const STEP_TIME: Duration = Duration::from_secs(3);
/// After this time without throttling, the rate is at least the first one again.
const RECOVERED: Duration = Duration::from_mins(5);
/// The rate grows only if a call has waited for its token within this time. Otherwise nothing is
/// known of a higher rate.
const SATURATED: Duration = Duration::from_secs(10);

/// The bounds of a rate that is learned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptiveRate {
    /// The lowest rate per second.
    pub(crate) min: f64,
    /// The highest rate per second.
    pub(crate) max: f64,
    /// Minimum time between cuts. The retries of a throttled call take no tokens, and are throttled
    /// too.
    pub(crate) cut_apart: Duration,
}

/// A request that was not sent, because too many requests wait for the same limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not sent: {waiting} requests wait for the rate limit")]
pub(crate) struct Busy {
    waiting: u32,
}

/// A token bucket. Clones share the tokens.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    bucket: Arc<Mutex<Bucket>>,
    /// Held by the request that receives the next token. Others wait in order.
    turn: Arc<tokio::sync::Mutex<()>>,
    adaptive: Option<AdaptiveRate>,
}

#[derive(Debug, Default)]
struct Bucket {
    /// Tokens per second.
    rate: f64,
    /// The rate at the start.
    first_rate: f64,
    burst: f64,
    tokens: f64,
    /// When `tokens` was computed. `None` before the first request.
    at: Option<Instant>,
    /// Number of requests that wait for a token.
    waiting: u32,
    /// When a request last had to wait.
    saturated_at: Option<Instant>,
    /// The rate at the last throttled call. Zero if none was throttled.
    ceiling: f64,
    /// When the rate last changed.
    changed_at: Option<Instant>,
    /// When the rate was last cut.
    cut_at: Option<Instant>,
    /// Calls without throttling since the rate last changed.
    calls: u32,
    /// Steps above [`NEAR`] since the last throttled call.
    probes: u32,
}

/// A request that waits. Dropping it, for example because its call is cancelled, frees its place.
struct Waiting<'l>(&'l Limiter);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.bucket().waiting -= 1;
    }
}

impl Limiter {
    /// Creates a limiter with an average rate per second and a burst.
    pub(crate) fn new(qps: u32, burst: u32) -> Self {
        let (rate, burst) = (f64::from(qps.max(1)), f64::from(burst.max(1)));
        let bucket = Bucket { rate, first_rate: rate, burst, tokens: burst, ..Bucket::default() };
        Self { bucket: Arc::new(Mutex::new(bucket)), turn: Arc::default(), adaptive: None }
    }

    /// Creates a limiter that starts with this rate and learns the rate of the server.
    pub(crate) fn adaptive(qps: u32, burst: u32, adaptive: AdaptiveRate) -> Self {
        Self { adaptive: Some(adaptive), ..Self::new(qps, burst) }
    }

    /// Returns whether two limiters share their tokens.
    #[cfg(all(test, feature = "aws"))]
    pub(crate) fn shares_tokens_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bucket, &other.bucket)
    }

    /// Waits for a token. Callers limit the duration of the whole call.
    pub(crate) async fn wait_for_token(&self) {
        self.bucket().waiting += 1;
        self.take_turn(Waiting(self)).await;
    }

    /// Waits for a token for at most `limit`. Fails immediately if the token is expected later.
    pub(crate) async fn wait_at_most(&self, limit: Duration) -> Result<(), Busy> {
        let place = {
            let mut bucket = self.bucket();
            bucket.refill(clock::monotonic_now());
            let ahead = f64::from(bucket.waiting + 1) - bucket.tokens;
            if ahead / bucket.rate > limit.as_secs_f64() {
                return Err(Busy { waiting: bucket.waiting });
            }
            bucket.waiting += 1;
            Waiting(self)
        };
        // The rate may be cut meanwhile.
        let taken = timeout(limit + PATIENCE, self.take_turn(place)).await;
        taken.map_err(|_| Busy { waiting: self.bucket().waiting })
    }

    /// Records the response to a call that was sent at `sent`. A throttled call that was sent
    /// before the last cut, or shortly after, shows nothing about the rate since. Returns the new
    /// rate if it was cut.
    pub(crate) fn record_response(&self, throttled: bool, sent: Instant) -> Option<f64> {
        let adaptive = self.adaptive?;
        let now = clock::monotonic_now();
        let mut bucket = self.bucket();
        if !throttled {
            bucket.on_success(now, adaptive);
            return None;
        }
        let is_new = bucket.cut_at.is_none_or(|cut| sent >= cut + adaptive.cut_apart);
        is_new.then(|| bucket.cut(now, adaptive))
    }

    async fn take_turn(&self, _waiting: Waiting<'_>) {
        let _turn = self.turn.lock().await;
        // The rate may change meanwhile.
        while let Some(wait) = self.take_token() {
            sleep(wait).await;
            self.bucket().saturated_at = Some(clock::monotonic_now());
        }
    }

    fn take_token(&self) -> Option<Duration> {
        self.bucket().take(clock::monotonic_now())
    }

    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bucket {
    fn refill(&mut self, now: Instant) {
        let since = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.tokens = (self.tokens + since.as_secs_f64() * self.rate).min(self.burst);
        self.at = Some(now);
        let is_recovered = |cut| now.saturating_duration_since(cut) >= RECOVERED;
        if self.rate < self.first_rate && self.cut_at.is_none_or(is_recovered) {
            self.rate = self.first_rate;
        }
    }

    /// Takes a token, or returns the time until there is one.
    fn take(&mut self, now: Instant) -> Option<Duration> {
        self.refill(now);
        // Tolerates rounding.
        if self.tokens >= 1.0 - 1e-6 {
            self.tokens -= 1.0;
            return None;
        }
        // At least the resolution of timers.
        let wait = Duration::from_secs_f64((1.0 - self.tokens) / self.rate);
        Some(wait.max(Duration::from_millis(1)))
    }

    fn on_success(&mut self, now: Instant, adaptive: AdaptiveRate) {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < SATURATED;
        if !self.saturated_at.is_some_and(is_recent) {
            return;
        }
        self.calls += 1;
        let began = *self.changed_at.get_or_insert(now);
        if self.calls < STEP_CALLS || now.saturating_duration_since(began) < STEP_TIME {
            return;
        }
        self.refill(now);
        let near = self.ceiling * NEAR;
        self.rate = if self.rate < near {
            (self.rate * RECOVERY).min(near)
        } else {
            let step = (PROBE * f64::from(1_u32 << self.probes.min(10))).min(1.0);
            self.probes += 1;
            self.rate * (1.0 + step)
        };
        self.rate = self.rate.min(adaptive.max);
        (self.changed_at, self.calls) = (Some(now), 0);
    }

    fn cut(&mut self, now: Instant, adaptive: AdaptiveRate) -> f64 {
        self.refill(now);
        self.ceiling = self.rate;
        self.rate = (self.rate * CUT).max(adaptive.min);
        // The bucket of the server is empty, too.
        self.tokens = self.tokens.min(0.0);
        (self.changed_at, self.cut_at) = (Some(now), Some(now));
        (self.calls, self.probes) = (0, 0);
        self.rate
    }
}

#[cfg(test)]
mod tests;
