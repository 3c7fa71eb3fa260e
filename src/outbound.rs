//! Layers that every outgoing request passes: the fence, rate limits, and measurement of clock
//! skew.

// Rate limiter with burst.
pub(crate) mod rate_limiter;

// The `Fence`, which prevents changes while this host is not the leader.
pub(crate) mod fence;

// Clock skew from `Date` headers.
pub(crate) mod clock_skew;

// Process groups of child programs.
pub(crate) mod process_group;
