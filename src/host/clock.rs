//! The only readings of time and entropy: everything else is told.
//! It must not know what they are used for.

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

/// The time of day.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the clock is read"
)]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// A time that only grows, whatever is done to the time of day: for waits, not for people.
#[cfg(feature = "daemon")]
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the clock is read"
)]
pub(crate) fn monotonic() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// A moment by every clock there is. One of them may be set (the time of day), one stands still
/// while the host is suspended (the monotonic one of Linux), and one that does neither
/// (`CLOCK_BOOTTIME`) does not follow the clock that tests advance.
#[cfg(feature = "daemon")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// The time that waits are measured by.
    pub(crate) steady: tokio::time::Instant,
    /// The time of day.
    pub(crate) wall: Timestamp,
    /// Time since the host was started, that of suspension included.
    pub(crate) boot: Duration,
}

#[cfg(feature = "daemon")]
impl Moment {
    /// This moment.
    pub(crate) fn now() -> Self {
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self {
            steady: monotonic(),
            wall: now(),
            boot: Duration::try_from(boot).unwrap_or_default(),
        }
    }

    /// So much later; what no clock can say any more is as late as can be said.
    pub(crate) fn plus(self, span: Duration) -> Self {
        Self {
            steady: self.steady.checked_add(span).unwrap_or(self.steady),
            wall: self.wall.checked_add(span).unwrap_or(Timestamp::MAX),
            boot: self.boot.saturating_add(span),
        }
    }

    /// How long it is until this moment, by the clock by which it comes first; nothing if one says
    /// that it has passed.
    pub(crate) fn left(self) -> Duration {
        let now = Self::now();
        let steady = self.steady.saturating_duration_since(now.steady);
        let wall = Duration::try_from(self.wall.duration_since(now.wall)).unwrap_or_default();
        steady.min(wall).min(self.boot.saturating_sub(now.boot))
    }
}

/// A clock that begins with the time of day and goes on by `CLOCK_BOOTTIME`. It does not change
/// when a user or NTP sets the time of day, and tells by how much they did.
#[cfg(feature = "daemon")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SteadyClock {
    read: fn() -> Moment,
    start: Moment,
}

#[cfg(feature = "daemon")]
impl SteadyClock {
    /// Starts at this moment; `read` is `Moment::now` everywhere but in tests.
    pub(crate) fn start(read: fn() -> Moment) -> Self {
        let start = read();
        Self { read, start }
    }

    /// The time by this clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.at((self.read)())
    }

    /// How long it is until `at`.
    pub(crate) fn until(&self, at: Timestamp) -> Duration {
        Duration::try_from(at.duration_since(self.now())).unwrap_or_default()
    }

    /// By how much the time of day has been set since the start.
    pub(crate) fn set_by(&self) -> SignedDuration {
        let now = (self.read)();
        now.wall.duration_since(self.at(now))
    }

    fn at(&self, now: Moment) -> Timestamp {
        let passed = now.boot.saturating_sub(self.start.boot);
        let at = self.start.wall.checked_add(passed);
        at.unwrap_or(Timestamp::MAX)
    }
}

/// A number that differs from one start of the process to the next.
#[cfg(feature = "daemon")]
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where entropy is drawn"
)]
pub(crate) fn seed() -> u64 {
    RandomState::new().hash_one(Timestamp::now().as_nanosecond())
}

/// Bytes that nobody can guess, from the source that keys of TLS come from.
#[cfg(feature = "daemon")]
pub(crate) fn unguessable(bytes: &mut [u8]) -> Result<(), String> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let filled = provider.secure_random.fill(bytes);
    filled.map_err(|_| "the operating system gives no random bytes".to_owned())
}

/// When something last went round, as other threads see it.
#[cfg(feature = "daemon")]
#[derive(Debug)]
pub(crate) struct Heartbeat {
    since: Stopwatch,
    millis: AtomicU64,
}

#[cfg(feature = "daemon")]
impl Heartbeat {
    /// It just did.
    pub(crate) fn start() -> Self {
        Self {
            since: Stopwatch::start(),
            millis: AtomicU64::new(0),
        }
    }

    /// It goes round.
    pub(crate) fn beat(&self) {
        self.millis.store(self.millis(), Ordering::Relaxed);
    }

    /// How long ago it last did.
    pub(crate) fn age(&self) -> Duration {
        let last = self.millis.load(Ordering::Relaxed);
        Duration::from_millis(self.millis().saturating_sub(last))
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Measures a span of time, for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the clock is read"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// How long it is until `at`, by the clock.
#[cfg(feature = "daemon")]
pub(crate) fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now())).unwrap_or_default()
}
