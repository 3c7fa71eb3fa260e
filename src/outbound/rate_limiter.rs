//! Spaces requests out: so many at once, so many a second on average, the others wait their turn.
//! It must not know what is requested.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::host::clock;

/// The longest wait for a turn. Callers limit the whole call, and the slowest average that can be
/// set, one request a second, must not use up that limit.
const WAIT: Duration = Duration::from_secs(20);

/// A token bucket, kept as the time at which the last token granted so far falls due.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    due: Arc<Mutex<Option<Instant>>>,
    /// Time between two requests on average.
    apart: Duration,
    /// How far requests may run ahead of that.
    ahead: Duration,
}

impl Limiter {
    /// So many requests a second on average, so many at once.
    pub(crate) fn new(qps: u32, burst: u32) -> Self {
        let apart = Duration::from_secs(1) / qps.max(1);
        Self {
            due: Arc::default(),
            apart,
            ahead: apart.saturating_mul(burst.max(1) - 1),
        }
    }

    /// Whether requests of one make those of the other wait.
    #[cfg(all(test, feature = "aws"))]
    pub(crate) fn is_one_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.due, &other.due)
    }

    /// Waits for this request's turn.
    pub(crate) async fn turn(&self) {
        let wait = self.wait(clock::monotonic());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    fn wait(&self, now: Instant) -> Duration {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waits as long as anybody may does not make the next one wait for longer.
        let latest = now + self.ahead + WAIT;
        let own = due.unwrap_or(now).max(now).min(latest);
        *due = Some(own + self.apart);
        own.duration_since(now).saturating_sub(self.ahead)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Limiter, WAIT};
    use crate::host::clock;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_average() {
        let limiter = Limiter::new(10, 3);
        let now = clock::monotonic();
        let waits: Vec<u128> = (0..5).map(|_| limiter.wait(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        let later = now + Duration::from_secs(60);
        assert!(limiter.wait(later).is_zero());
    }

    #[test]
    fn nobody_waits_for_ever() {
        let limiter = Limiter::new(1, 1);
        let now = clock::monotonic();
        let longest = (0..1000).map(|_| limiter.wait(now)).max();
        assert_eq!(longest, Some(WAIT));
    }
}
