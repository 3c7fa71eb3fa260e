//! The only module that reads clocks and entropy. Other modules receive the values.

#[cfg(feature = "daemon")]
use std::collections::hash_map::RandomState;
#[cfg(feature = "daemon")]
use std::hash::BuildHasher;
#[cfg(feature = "daemon")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(feature = "daemon")]
use jiff::SignedDuration;
use jiff::Timestamp;

/// The wall clock.
#[expect(clippy::disallowed_methods, reason = "the one place where the clock is read")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// A monotonic time for waits. Setting the wall clock does not change it.
#[cfg(feature = "daemon")]
#[expect(clippy::disallowed_methods, reason = "the one place where the clock is read")]
pub(crate) fn monotonic_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// A moment on each clock: the wall clock can be set, the monotonic clock of Linux stops while the
/// host is suspended, and `CLOCK_BOOTTIME` has neither problem but does not follow the simulated
/// clock of tests.
#[cfg(feature = "daemon")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// The monotonic time.
    pub(crate) steady: tokio::time::Instant,
    /// The wall clock time.
    pub(crate) wall: Timestamp,
    /// Time since the start of the host, including suspension.
    pub(crate) boot: Duration,
}

#[cfg(feature = "daemon")]
impl Moment {
    /// Returns the current moment.
    pub(crate) fn now() -> Self {
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self {
            steady: monotonic_now(),
            wall: now(),
            boot: Duration::try_from(boot).unwrap_or_default(),
        }
    }

    /// Adds a duration. Saturates at the maximum of each clock.
    pub(crate) fn plus(self, span: Duration) -> Self {
        Self {
            steady: self.steady.checked_add(span).unwrap_or(self.steady),
            wall: self.wall.checked_add(span).unwrap_or(Timestamp::MAX),
            boot: self.boot.saturating_add(span),
        }
    }

    /// Time until this moment, by the clock that reaches it first. Zero if any clock has passed it.
    pub(crate) fn time_left(self) -> Duration {
        let now = Self::now();
        let steady = self.steady.saturating_duration_since(now.steady);
        let wall = Duration::try_from(self.wall.duration_since(now.wall)).unwrap_or_default();
        steady.min(wall).min(self.boot.saturating_sub(now.boot))
    }
}

/// A clock that starts with the wall clock time and advances by `CLOCK_BOOTTIME`. Setting the wall
/// clock does not change this clock, which measures by how much the wall clock was set.
#[cfg(feature = "daemon")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SteadyClock {
    read: fn() -> Moment,
    start: Moment,
}

#[cfg(feature = "daemon")]
impl SteadyClock {
    /// Starts the clock at the current moment. `read` is `Moment::now` except in tests.
    pub(crate) fn start(read: fn() -> Moment) -> Self {
        let start = read();
        Self { read, start }
    }

    /// The time of this clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.time_at((self.read)())
    }

    /// Time until `at`.
    pub(crate) fn time_until(&self, at: Timestamp) -> Duration {
        Duration::try_from(at.duration_since(self.now())).unwrap_or_default()
    }

    /// By how much the wall clock was set since the start.
    pub(crate) fn wall_clock_shift(&self) -> SignedDuration {
        let now = (self.read)();
        now.wall.duration_since(self.time_at(now))
    }

    fn time_at(&self, now: Moment) -> Timestamp {
        let passed = now.boot.saturating_sub(self.start.boot);
        let at = self.start.wall.checked_add(passed);
        at.unwrap_or(Timestamp::MAX)
    }
}

/// A number that differs between starts of the process.
#[cfg(feature = "daemon")]
#[expect(clippy::disallowed_methods, reason = "the one place where entropy is drawn")]
pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(Timestamp::now().as_nanosecond())
}

/// Cryptographically secure random bytes, from the same source as TLS keys.
#[cfg(feature = "daemon")]
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), NoRandomBytes> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.secure_random.fill(bytes).map_err(|_| NoRandomBytes)
}

/// The random source of the operating system failed.
#[cfg(feature = "daemon")]
#[derive(Debug, thiserror::Error)]
#[error("the operating system returns no random bytes")]
pub(crate) struct NoRandomBytes;

/// The last activity of a loop, readable from other threads.
#[cfg(feature = "daemon")]
#[derive(Debug)]
pub(crate) struct Heartbeat {
    since: Stopwatch,
    millis: AtomicU64,
}

#[cfg(feature = "daemon")]
impl Heartbeat {
    /// Creates a record with activity now.
    pub(crate) fn start() -> Self {
        Self { since: Stopwatch::start(), millis: AtomicU64::new(0) }
    }

    /// Records activity.
    pub(crate) fn record_activity(&self) {
        self.millis.store(self.millis(), Ordering::Relaxed);
    }

    /// Time since the last activity.
    pub(crate) fn age(&self) -> Duration {
        let last = self.millis.load(Ordering::Relaxed);
        Duration::from_millis(self.millis().saturating_sub(last))
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Measures a time span for display.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "the one place where the clock is read")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Time until `at`, by the wall clock.
#[cfg(feature = "daemon")]
pub(crate) fn time_until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now())).unwrap_or_default()
}
