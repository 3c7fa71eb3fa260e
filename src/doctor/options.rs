//! Selects the checks to run and limits their time, per check and in total.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::doctor::codes::DoctorCode;
use crate::doctor::report::Check;
use crate::host::clock;

/// Checks that can be skipped. The configuration is always checked, because it determines the other
/// checks.
pub(crate) const TOPICS: [&str; 14] = [
    "host",
    "kubeconfig",
    "api",
    "clock",
    "version",
    "rights",
    "lease",
    "autoscalers",
    "priority",
    "pools",
    "aws",
    "queue",
    "instances",
    "launch",
];

/// Time limit of one check.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// Time limit of all checks, because a user waits for the result.
const TOTAL: Duration = Duration::from_mins(2);

/// The selected checks and their deadline.
pub(crate) struct DoctorRun {
    skip: BTreeSet<String>,
    until: Instant,
}

impl DoctorRun {
    /// Selects all topics except these. The time limit begins now.
    pub(crate) fn new(skip: impl IntoIterator<Item = String>) -> Self {
        Self { skip: skip.into_iter().collect(), until: clock::monotonic_now() + TOTAL }
    }

    /// Returns the result of a topic that the user skipped.
    pub(crate) fn skipped_topic(&self, topic: &str) -> Option<Check> {
        let why = "skipped on request";
        self.skip.contains(topic).then(|| Check::left_out(topic, why))
    }

    /// Runs a check that does not wait for anything.
    pub(crate) fn check_now(&self, topic: &str, check: impl FnOnce() -> Check) -> Check {
        self.skipped_topic(topic).unwrap_or_else(check)
    }

    /// Runs a check within its time limit.
    pub(crate) async fn check_within_limit(
        &self,
        topic: &str,
        check: impl Future<Output = Check>,
    ) -> Check {
        if let Some(left_out) = self.skipped_topic(topic) {
            return left_out;
        }
        match self.within(check).await {
            Some(check) => check,
            None => self.timed_out(topic),
        }
    }

    /// Runs `work` within the time limit, or returns `None` on a timeout.
    pub(crate) async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let left = self.until.duration_since(clock::monotonic_now());
        timeout(LIMIT.min(left), work).await.ok()
    }

    /// Reports a check that timed out.
    pub(crate) fn timed_out(&self, name: &str) -> Check {
        if clock::monotonic_now() >= self.until {
            let why = format!("the time limit of {} s for all checks was reached", TOTAL.as_secs());
            let fix = "outrigger doctor --cluster NAME";
            return Check::skipped(name, &why, Some(fix));
        }
        let why = format!("no response within {} s", LIMIT.as_secs());
        Check::failed(
            (name, DoctorCode::CheckLate.code()),
            &why,
            "check that this host can reach the service, then try again",
        )
    }
}
