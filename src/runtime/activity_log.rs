//! Recent activity of a cluster, one line per report, for `outrigger top`.

use std::borrow::Cow;
use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::engine::report::description::{Description, Object};
use crate::host::text::bounded_line;

/// Lines kept per cluster: about an hour of a busy cluster, and some tens of kilobytes.
const LINES: usize = 200;

/// A line of the activity log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityEntry {
    /// When the event happened.
    pub at: Timestamp,
    /// True if the line is a warning.
    pub warns: bool,
    /// The event, in two or three words.
    pub what: Cow<'static, str>,
    /// The node, claim, pod or pool of the event. Empty if the event concerns the whole cluster.
    pub of: String,
    /// Details.
    pub text: String,
    /// Number of consecutive events that the line summarizes. The line shows the last event.
    pub times: u32,
}

/// The lines of one cluster, oldest first.
#[derive(Debug, Default)]
pub struct ActivityLog(VecDeque<ActivityEntry>);

impl ActivityLog {
    /// Adds the line of a report, if the report has one. Merges consecutive reports about pods into
    /// one line.
    pub fn add_report(&mut self, described: &Description<'_>, now: Timestamp) {
        let Some(activity) = &described.activity else {
            return;
        };
        let line = ActivityEntry {
            at: now,
            warns: activity.warns,
            what: Cow::Borrowed(activity.title),
            of: bounded_line(&activity.object.to_string()),
            text: bounded_line(&activity.text),
            times: 1,
        };
        let is_of_pod = matches!(activity.object, Object::Pod(_));
        let last = self.0.back_mut();
        if let Some(last) = last.filter(|entry| is_of_pod && entry.what == line.what) {
            let times = last.times.saturating_add(1);
            *last = ActivityEntry { times, ..line };
            return;
        }
        if self.0.len() >= LINES {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    /// Returns all lines, newest first.
    pub fn newest_first(&self) -> Vec<ActivityEntry> {
        self.0.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::{ActivityLog, LINES};
    use crate::engine::report::Report;
    use crate::model::id::PodKey;
    use crate::model::pool::Reason;

    #[test]
    fn newest_lines_are_first_and_oldest_are_dropped() {
        let mut timeline = ActivityLog::default();
        for nodes in 0..LINES + 5 {
            let report = Report::LeftClosed { nodes };
            timeline.add_report(&report.describe(true), Timestamp::UNIX_EPOCH);
        }
        let lines = timeline.newest_first();
        assert_eq!(lines.len(), LINES);
        assert!(lines[0].text.starts_with("204 disrupted nodes"), "{:?}", lines[0]);
    }

    #[test]
    fn consecutive_evictions_share_one_line() {
        let mut timeline = ActivityLog::default();
        let add_eviction = |timeline: &mut ActivityLog, name: &str| {
            let report = Report::Evicted { pod: PodKey::new("a", name), reason: Reason::Drifted };
            timeline.add_report(&report.describe(true), Timestamp::UNIX_EPOCH);
        };
        add_eviction(&mut timeline, "one\u{1b}[2J");
        add_eviction(&mut timeline, "two\u{1b}[2J");
        timeline.add_report(&Report::Thawed.describe(true), Timestamp::UNIX_EPOCH);
        add_eviction(&mut timeline, "three");
        let lines = timeline.newest_first();
        let texts: Vec<_> = lines.iter().map(|it| (&it.of[..], it.times)).collect();
        assert_eq!(texts, [("a/three", 1), ("", 1), ("a/two [2J", 2)]);
    }
}
