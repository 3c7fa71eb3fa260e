//! Random numbers from one seed, with an independent stream for each purpose.

use fastrand::Rng;
use jiff::SignedDuration;

/// Returns the stream with this name for a seed. Streams do not affect each other.
pub fn random_stream(seed: u64, name: &str) -> Rng {
    // FNV-1a, so that the streams of a seed are unrelated.
    let mut mixed = seed ^ 0xcbf2_9ce4_8422_2325;
    for byte in name.bytes() {
        mixed = (mixed ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    Rng::with_seed(mixed)
}

/// Draws a duration between two bounds, both inclusive, in whole milliseconds. Equal bounds draw
/// nothing.
pub fn duration_between(
    rng: &mut Rng,
    low: SignedDuration,
    high: SignedDuration,
) -> SignedDuration {
    let (low, high) = (to_millis(low), to_millis(high));
    if low >= high {
        return SignedDuration::from_millis(low);
    }
    SignedDuration::from_millis(rng.i64(low..=high))
}

/// Draws a duration from zero to this duration.
pub fn duration_up_to(rng: &mut Rng, high: SignedDuration) -> SignedDuration {
    duration_between(rng, SignedDuration::ZERO, high)
}

/// Draws true with this probability per thousand. Zero draws nothing.
pub fn draw_chance(rng: &mut Rng, per_mille: u32) -> bool {
    per_mille > 0 && rng.u32(0..1000) < per_mille
}

fn to_millis(duration: SignedDuration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
