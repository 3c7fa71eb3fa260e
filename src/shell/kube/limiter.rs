//! Spaces requests out: so many at once, so many a second on average, the others wait their turn.
//! It must not know what is requested.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use tokio::time::sleep;

use crate::shell::clock;

/// A token bucket, kept as the time at which the last token granted so far falls due.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    due: Arc<Mutex<Timestamp>>,
    /// Time between two requests on average.
    apart: SignedDuration,
    /// How far requests may run ahead of that.
    ahead: SignedDuration,
}

impl Limiter {
    /// So many requests a second on average, so many at once.
    pub(crate) fn new(qps: u32, burst: u32) -> Self {
        let apart = SignedDuration::from_nanos(1_000_000_000 / i64::from(qps.max(1)));
        let burst = i32::try_from(burst.max(1)).unwrap_or(i32::MAX);
        Self {
            due: Arc::new(Mutex::new(Timestamp::MIN)),
            apart,
            ahead: apart.saturating_mul(burst - 1),
        }
    }

    /// Waits for this request's turn.
    pub(crate) async fn turn(&self) {
        let wait = self.wait(clock::now());
        if wait.is_positive() {
            sleep(wait.unsigned_abs()).await;
        }
    }

    fn wait(&self, now: Timestamp) -> SignedDuration {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let own = (*due).max(now);
        *due = own.checked_add(self.apart).unwrap_or(own);
        own.duration_since(now) - self.ahead
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::Limiter;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_average() {
        let limiter = Limiter::new(10, 3);
        let now = Timestamp::UNIX_EPOCH;
        let waits: Vec<i128> = (0..5)
            .map(|_| limiter.wait(now).as_millis().max(0))
            .collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        let later = now
            .checked_add(SignedDuration::from_secs(60))
            .expect("in range");
        assert!(limiter.wait(later).as_millis() <= 0);
    }
}
