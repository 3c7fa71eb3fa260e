//! Cool-down of consolidation after other changes in the cluster, as in Cluster Autoscaler.

use jiff::Timestamp;

use crate::model::pool::CoolDown;
use crate::state::candidates::RecentActions;

/// Returns the end of the cool-down and its cause, or `None`.
pub fn cool_down_end(
    cool_down: &CoolDown,
    recent: &RecentActions,
    now: Timestamp,
) -> Option<(Timestamp, &'static str)> {
    [
        (recent.launched, cool_down.after_launch, "a launch"),
        (recent.ended, cool_down.after_end, "a termination"),
        (recent.failed, cool_down.after_failure, "a failure"),
    ]
    .into_iter()
    .filter_map(|(last, wait, cause)| {
        let until = last?.checked_add(wait).unwrap_or(Timestamp::MAX);
        (until > now).then_some((until, cause))
    })
    .max()
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::cool_down_end;
    use crate::model::pool::CoolDown;
    use crate::state::candidates::RecentActions;

    #[test]
    fn longest_cool_down_applies_and_none_by_default() {
        let at = |minute: i64| Timestamp::from_second(60 * minute).expect("in range");
        let minutes = SignedDuration::from_mins;
        let cool_down = CoolDown {
            after_launch: minutes(10),
            after_end: minutes(1),
            after_failure: minutes(3),
        };
        let recent = |launched, ended, failed| RecentActions {
            launched: Some(at(launched)),
            ended: Some(at(ended)),
            failed: Some(at(failed)),
        };
        let rows = [
            (recent(0, 0, 0), 5, Some((10, "a launch"))),
            (recent(0, 0, 0), 10, None),
            (recent(0, 10, 0), 10, Some((11, "a termination"))),
            (recent(0, 10, 9), 10, Some((12, "a failure"))),
            (RecentActions::default(), 1, None),
        ];
        for (recent, now, expect) in rows {
            let got = cool_down_end(&cool_down, &recent, at(now));
            assert_eq!(got, expect.map(|(minute, what)| (at(minute), what)), "{recent:?}");
            assert_eq!(cool_down_end(&CoolDown::default(), &recent, at(now)), None);
        }
    }
}
