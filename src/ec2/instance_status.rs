//! Evaluates the health of instances as EC2 reports it: failed checks and scheduled maintenance.
//!
//! Source: spec/aws.md §6.2 and §10, 95 and 96.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::id::InstanceId;
use crate::provider::Interruption;

/// How long a check must have failed before it is reported: two minutes, as in Karpenter.
pub const FAILS: SignedDuration = SignedDuration::from_secs(120);

/// Scheduled events that disrupt a node, as values of the filter `event.code`.
pub const EVENT_CODES: [&str; 5] = [
    "instance-reboot",
    "system-reboot",
    "system-maintenance",
    "instance-retirement",
    "instance-stop",
];

/// A status check of the instance or its host. Volume checks are not evaluated, because the volumes
/// may belong to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusCheckDetail {
    /// True if the check fails.
    pub failed: bool,
    /// When the check started to fail. `None` is treated as long enough ago.
    pub since: Option<Timestamp>,
}

/// A scheduled event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Code.
    pub code: String,
    /// Description. Completed events stay in the list for a week, with a prefix in the description.
    pub description: String,
    /// Earliest start.
    pub not_before: Option<Timestamp>,
}

/// The status of one instance in one listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusRow {
    /// The instance.
    pub instance: InstanceId,
    /// Status checks of the instance and of its host.
    pub checks: Vec<StatusCheckDetail>,
    /// Events.
    pub events: Vec<Scheduled>,
}

/// Problems of instances, by id. Failed checks take precedence over scheduled events. An instance
/// may be in several listings.
pub fn instance_problems(
    rows: &[StatusRow],
    now: Timestamp,
) -> BTreeMap<InstanceId, (Interruption, Timestamp)> {
    let mut all = BTreeMap::new();
    for row in rows {
        let Some(finding) = row_problem(row, now) else {
            continue;
        };
        let worst = all.entry(row.instance.clone()).or_insert(finding);
        if finding.0 > worst.0 {
            *worst = finding;
        }
    }
    all
}

fn row_problem(row: &StatusRow, now: Timestamp) -> Option<(Interruption, Timestamp)> {
    if row.checks.iter().any(|check| {
        let long = check.since.is_none_or(|since| now.duration_since(since) >= FAILS);
        check.failed && long
    }) {
        return Some((Interruption::Failed, now));
    }
    let event = row.events.iter().find(|event| {
        let over = ["[Completed]", "[Canceled]"];
        EVENT_CODES.contains(&event.code.as_str())
            && !over.iter().any(|mark| event.description.starts_with(mark))
    })?;
    Some((Interruption::Maintenance, event.not_before.unwrap_or(now)))
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::{Scheduled, StatusCheckDetail, StatusRow, instance_problems};
    use crate::provider::Interruption::{self, Failed, Maintenance};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn check(failed: bool, seconds: i64) -> StatusCheckDetail {
        StatusCheckDetail { failed, since: Some(NOW - SignedDuration::from_secs(seconds)) }
    }

    fn event(code: &str, description: &str) -> Scheduled {
        Scheduled { code: code.to_owned(), description: description.to_owned(), not_before: None }
    }

    #[test]
    fn status_checks_and_scheduled_events_become_interruptions() {
        let stop = || vec![event("instance-stop", "The instance is on degraded hardware")];
        let reboot_event = |mark| vec![event("system-reboot", mark)];
        let failed_since_unknown = StatusCheckDetail { failed: true, since: None };
        let cases: Vec<(Vec<StatusCheckDetail>, Vec<Scheduled>, Option<Interruption>)> = vec![
            (vec![], vec![], None),
            (vec![check(false, 500)], vec![], None),
            (vec![check(true, 119)], vec![], None),
            (vec![check(true, 120)], vec![], Some(Failed)),
            (vec![failed_since_unknown], vec![], Some(Failed)),
            (vec![check(false, 0), check(true, 900)], vec![], Some(Failed)),
            (vec![check(true, 119)], stop(), Some(Maintenance)),
            (vec![check(true, 120)], stop(), Some(Failed)),
            (vec![], stop(), Some(Maintenance)),
            (vec![], vec![event("instance-reboot", "")], Some(Maintenance)),
            (vec![], vec![event("system-maintenance", "")], Some(Maintenance)),
            (vec![], vec![event("instance-retirement", "")], Some(Maintenance)),
            (vec![], vec![event("something-else", "")], None),
            (vec![], reboot_event("[Completed] reboot"), None),
            (vec![], reboot_event("[Canceled] reboot"), None),
            (vec![], reboot_event("reboot"), Some(Maintenance)),
        ];
        for (checks, events, expect) in cases {
            let row = StatusRow { instance: "i-1".into(), checks, events };
            let found = instance_problems(std::slice::from_ref(&row), NOW);
            let found = found.get("i-1").map(|problem| problem.0);
            assert_eq!(found, expect, "{row:?}");
        }
    }

    #[test]
    fn most_urgent_problem_of_an_instance_wins() {
        let row = |checks, events| StatusRow { instance: "i-1".into(), checks, events };
        let rows =
            [row(vec![], vec![event("instance-stop", "")]), row(vec![check(true, 300)], vec![])];
        for rows in [rows.clone(), [rows[1].clone(), rows[0].clone()]] {
            let all = instance_problems(&rows, NOW);
            assert_eq!(all.len(), 1);
            assert_eq!(all.get("i-1"), Some(&(Failed, NOW)));
        }
    }
}
