//! What is looked at, and how long that may take: each check has a limit, and all together.
//! It must not know what a check looks at.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::doctor::codes::DoctorCode;
use crate::doctor::report::Check;
use crate::host::clock;

/// What need not be looked at: all but the configuration, which says what there is to look at.
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

/// Time for one check: what takes longer works too badly to be called well.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// Time for everything: somebody waits for it.
const TOTAL: Duration = Duration::from_mins(2);

/// What is looked at, and until when.
pub(crate) struct DoctorRun {
    skip: BTreeSet<String>,
    until: Instant,
}

impl DoctorRun {
    /// Everything but these topics, from here on.
    pub(crate) fn new(skip: impl IntoIterator<Item = String>) -> Self {
        Self {
            skip: skip.into_iter().collect(),
            until: clock::monotonic() + TOTAL,
        }
    }

    /// The check of a topic that somebody asked not to make.
    pub(crate) fn left_out(&self, topic: &str) -> Option<Check> {
        let why = "left out, as asked";
        self.skip
            .contains(topic)
            .then(|| Check::left_out(topic, why))
    }

    /// Makes a check that takes no time.
    pub(crate) fn at_once(&self, topic: &str, check: impl FnOnce() -> Check) -> Check {
        self.left_out(topic).unwrap_or_else(check)
    }

    /// Makes a check, within its time.
    pub(crate) async fn check(&self, topic: &str, check: impl Future<Output = Check>) -> Check {
        if let Some(left_out) = self.left_out(topic) {
            return left_out;
        }
        match self.within(check).await {
            Some(check) => check,
            None => self.late(topic),
        }
    }

    /// The same for what is no check of its own; none where there was no time.
    pub(crate) async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let left = self.until.duration_since(clock::monotonic());
        timeout(LIMIT.min(left), work).await.ok()
    }

    /// What is said of a check that was not over in time.
    pub(crate) fn late(&self, name: &str) -> Check {
        if clock::monotonic() >= self.until {
            let why = format!("no time was left: all checks have {} s", TOTAL.as_secs());
            let fix = "outrigger doctor --cluster NAME";
            return Check::skipped(name, &why, Some(fix));
        }
        let why = format!("no answer within {} s", LIMIT.as_secs());
        Check::failed(
            (name, DoctorCode::CheckLate.code()),
            &why,
            "let this host reach what is asked, then try again",
        )
    }
}
