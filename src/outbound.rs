//! What every request that leaves the process passes: the fence, rate limits, the clock skew of
//! its answer.

pub(crate) mod rate_limiter;

pub(crate) mod fence;

pub(crate) mod clock_skew;

pub(crate) mod process_group;
