//! Limits the rate of requests: a burst and an average per second. Further requests wait.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::host::clock;

/// The longest wait. Callers limit the duration of the whole call, and the lowest rate of one
/// request per second must not exceed that limit.
const WAIT: Duration = Duration::from_secs(20);

/// A token bucket, stored as the time at which the last granted token is due.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    due: Arc<Mutex<Option<Instant>>>,
    /// Average interval between requests.
    apart: Duration,
    /// The burst, as the time in which the average rate grants as many tokens.
    ahead: Duration,
}

impl Limiter {
    /// Creates a limiter with an average rate per second and a burst.
    pub(crate) fn new(qps: u32, burst: u32) -> Self {
        let apart = Duration::from_secs(1) / qps.max(1);
        Self { due: Arc::default(), apart, ahead: apart.saturating_mul(burst.max(1) - 1) }
    }

    /// Returns whether two limiters share their tokens.
    #[cfg(all(test, feature = "aws"))]
    pub(crate) fn shares_tokens_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.due, &other.due)
    }

    /// Waits for a token.
    pub(crate) async fn wait_for_token(&self) {
        let wait = self.take_token(clock::monotonic_now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    fn take_token(&self, now: Instant) -> Duration {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        // A request that waits for the maximum time does not delay the next request further.
        let latest = now + self.ahead + WAIT;
        let slot = due.unwrap_or(now).max(now).min(latest);
        *due = Some(slot + self.apart);
        slot.duration_since(now).saturating_sub(self.ahead)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Limiter, WAIT};
    use crate::host::clock;

    #[test]
    fn burst_is_immediate_and_later_requests_are_paced() {
        let limiter = Limiter::new(10, 3);
        let now = clock::monotonic_now();
        let waits: Vec<u128> = (0..5).map(|_| limiter.take_token(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        let later = now + Duration::from_secs(60);
        assert!(limiter.take_token(later).is_zero());
    }

    #[test]
    fn wait_for_a_token_is_bounded() {
        let limiter = Limiter::new(1, 1);
        let now = clock::monotonic_now();
        let longest = (0..1000).map(|_| limiter.take_token(now)).max();
        assert_eq!(longest, Some(WAIT));
    }
}
