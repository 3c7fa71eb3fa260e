//! The only readings of time and entropy: everything else is told.
//! It must not know what they are used for.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

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
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the clock is read"
)]
pub(crate) fn monotonic() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// A number that differs from one start of the process to the next.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where entropy is drawn"
)]
pub(crate) fn seed() -> u64 {
    RandomState::new().hash_one(Timestamp::now().as_nanosecond())
}

/// Bytes that nobody can guess, from the source that keys of TLS come from.
pub(crate) fn unguessable(bytes: &mut [u8]) -> Result<(), String> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let filled = provider.secure_random.fill(bytes);
    filled.map_err(|_| "the operating system gives no random bytes".to_owned())
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
pub(crate) fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now())).unwrap_or_default()
}
