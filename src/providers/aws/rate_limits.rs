//! Rate limits of the EC2 API, which learn the quotas of the account.

use std::time::Duration;

use tokio::time::Instant;

use crate::outbound::rate_limiter::{AdaptiveRate, Limiter};

/// Bounds of the learned request rates. Without reads the daemon does not know what exists. The SDK
/// retries within seconds.
const RATES: AdaptiveRate = AdaptiveRate { min: 1.0, max: 20.0, cut_apart: Duration::from_secs(3) };
/// Bounds of the rate of launches. Each call may launch many instances, and is not retried.
const LAUNCH_RATES: AdaptiveRate = AdaptiveRate { min: 0.1, max: 20.0, cut_apart: Duration::ZERO };

/// Rate limits of the API, with a token bucket each. EC2 limits the requests of all callers of an
/// account and region together, by API and by quotas that may differ. Each limiter starts below the
/// default quota, and learns the actual one from throttled calls. Source: EC2 developer guide,
/// request throttling: 5 tokens and 2 per second for RunInstances, 50 and 5 for most changes, 100
/// and 20 for reads. CreateFleet is not documented; users report the quota of RunInstances.
#[derive(Clone, Debug)]
pub(crate) struct RateLimits {
    /// Describe calls, and calls of other services.
    pub(crate) read: Limiter,
    /// CreateFleet and RunInstances.
    pub(crate) fleet: Limiter,
    /// TerminateInstances.
    pub(crate) terminate: Limiter,
    /// All other changes.
    pub(crate) change: Limiter,
}

impl Default for RateLimits {
    fn default() -> Self {
        let limiter = |qps, burst| Limiter::adaptive(qps, burst, RATES);
        Self {
            read: limiter(10, 50),
            fleet: Limiter::adaptive(2, 5, LAUNCH_RATES),
            terminate: limiter(5, 50),
            change: limiter(5, 50),
        }
    }
}

impl RateLimits {
    /// Returns the limiter of an EC2 operation.
    pub(crate) fn of_operation(&self, operation: &str) -> &Limiter {
        match operation {
            "CreateFleet" | "RunInstances" => &self.fleet,
            "TerminateInstances" => &self.terminate,
            read if read.starts_with("Describe") || read.starts_with("Get") => &self.read,
            _ => &self.change,
        }
    }

    /// Reports to the limiter of an EC2 operation whether a call was throttled, and logs a lower
    /// rate.
    pub(crate) fn record_response(
        &self,
        region: &str,
        operation: &str,
        throttled: bool,
        sent: Instant,
    ) {
        let rate = self.of_operation(operation).record_response(throttled, sent);
        if let Some(rate) = rate {
            tracing::info!(region, operation, rate, "EC2 throttled a call, sending fewer");
        }
    }
}
