//! Time windows: a five-field cron schedule with a duration, in a time zone.

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

use crate::model::cron_schedule::{CronSchedule, ScheduleError};

/// Why a window is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WindowError {
    /// Its schedule is invalid.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The duration is not between one minute and 31 days.
    #[error("a window lasts from 1m to 744h")]
    Duration,
}

/// A recurring window of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    schedule: CronSchedule,
    duration: SignedDuration,
}

/// Maximum duration of a window. For more than a month, the schedule should be inverted.
const DURATION_MAX: SignedDuration = SignedDuration::from_hours(744);

/// A window that changes this often without closing is treated as always open: one opening per
/// minute for half a day.
const CHANGES_MAX: usize = 1440;

impl Window {
    /// Creates a window that opens at each time of a cron expression (five fields, or a shortcut
    /// such as `@daily`), lasts `duration`, and uses the clock of `zone` (an IANA name).
    pub fn new(
        expression: &str,
        duration: SignedDuration,
        zone: &str,
    ) -> Result<Self, WindowError> {
        let schedule = CronSchedule::new(expression, zone)?;
        Self::with_schedule(schedule, duration).ok_or(WindowError::Duration)
    }

    /// Creates a window that opens at each occurrence of a schedule. `None` if the duration is not
    /// between one minute and 31 days.
    pub fn with_schedule(schedule: CronSchedule, duration: SignedDuration) -> Option<Self> {
        let is_valid = duration >= SignedDuration::from_mins(1) && duration <= DURATION_MAX;
        is_valid.then_some(Self { schedule, duration })
    }

    /// Returns whether the window is open at `now`. Karpenter's rule: the first opening after `now
    /// - duration` is not after `now` (spec/disruption.md §1.6).
    pub fn is_open_at(&self, now: Timestamp) -> bool {
        let Ok(from) = now.checked_sub(self.duration) else {
            return false;
        };
        self.next_after(from).is_some_and(|opens| opens <= now)
    }

    /// When the window next opens after `from`.
    pub fn next_after(&self, from: Timestamp) -> Option<Timestamp> {
        self.schedule.next_after(from)
    }

    /// The next time after `now` at which the window may open or close.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let from = now.checked_sub(self.duration).ok();
        let closes = from
            .and_then(|from| self.next_after(from)?.checked_add(self.duration).ok())
            .filter(|closes| *closes > now);
        closes.into_iter().chain(self.next_after(now)).min()
    }

    /// When the window first closes after `now`. `None` if it is always open.
    pub fn closes_after(&self, now: Timestamp) -> Option<Timestamp> {
        let mut at = now;
        for _ in 0..CHANGES_MAX {
            at = self.next_change(at)?;
            if !self.is_open_at(at) {
                return Some(at);
            }
        }
        None
    }

    /// The cron expression as written.
    pub fn expression(&self) -> &str {
        self.schedule.expression()
    }

    /// How long the window stays open.
    pub fn duration(&self) -> SignedDuration {
        self.duration
    }

    /// Name of its time zone.
    pub fn zone(&self) -> &str {
        self.schedule.zone()
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::Window;

    fn check(expression: &str, hours: i64, zone: &str, at: &str, open: bool) {
        let window = Window::new(expression, SignedDuration::from_hours(hours), zone);
        let now: Timestamp = at.parse().expect("a timestamp");
        assert_eq!(window.expect("a window").is_open_at(now), open, "{expression} {zone} {at}");
    }

    #[test]
    fn windows_follow_the_clock_of_their_time_zone() {
        check("0 8 * * mon-fri", 10, "UTC", "2026-11-20T08:00:00Z", true);
        check("0 8 * * mon-fri", 10, "UTC", "2026-11-20T17:59:59Z", true);
        check("0 8 * * mon-fri", 10, "UTC", "2026-11-20T18:00:00Z", false);
        check("0 8 * * mon-fri", 10, "UTC", "2026-11-21T09:00:00Z", false);
        check("0 8 * * *", 1, "Europe/Berlin", "2026-11-20T07:30:00Z", true);
        check("0 8 * * *", 1, "Europe/Berlin", "2026-07-20T06:30:00Z", true);
        check("@daily", 1, "UTC", "2026-07-20T00:30:00Z", true);
    }

    #[test]
    fn next_change_is_the_next_opening_or_closing() {
        let rows = [
            ("0 8 * * *", 2, "2026-11-20T07:00:00Z", "2026-11-20T08:00:00Z"),
            ("0 8 * * *", 2, "2026-11-20T08:00:00Z", "2026-11-20T10:00:00Z"),
            ("0 8 * * *", 2, "2026-11-20T09:59:59Z", "2026-11-20T10:00:00Z"),
            ("0 8 * * *", 2, "2026-11-20T10:00:00Z", "2026-11-21T08:00:00Z"),
            // It opens again before it has closed.
            ("0 * * * *", 2, "2026-11-20T09:30:00Z", "2026-11-20T10:00:00Z"),
        ];
        for (expression, hours, now, expect) in rows {
            let window = Window::new(expression, SignedDuration::from_hours(hours), "UTC");
            let now: Timestamp = now.parse().expect("a timestamp");
            let change = window.expect("a window").next_change(now);
            assert_eq!(change.map(|at| at.to_string()), Some(expect.to_owned()), "{now}");
        }
    }

    #[test]
    fn day_of_month_and_day_of_week_are_alternatives() {
        check("0 9 1 * mon", 1, "UTC", "2026-12-01T09:00:00Z", true);
        check("0 9 1 * mon", 1, "UTC", "2026-11-23T09:00:00Z", true);
        check("0 9 1 * mon", 1, "UTC", "2026-11-24T09:00:00Z", false);
        // If one of the two day fields is `*`, only the other applies.
        check("0 9 1 * *", 1, "UTC", "2026-11-23T09:00:00Z", false);
        check("0 9 * * mon", 1, "UTC", "2026-12-01T09:00:00Z", false);
        check("0 9 * * 7", 1, "UTC", "2026-11-22T09:00:00Z", true);
    }

    #[test]
    fn non_standard_cron_syntax_is_rejected() {
        let odd = [
            "0 9 L * *",
            "0 9 15W * *",
            "0 9 * * fri#2",
            "0 9 * * friL",
            "0 9 1 * +mon",
            "0 9 ? * mon",
            "0 9 H * *",
            "0 9 1,,2 * *",
            "0 9 -1 * *",
            "0 9 * * monday",
            "0 0 9 * * *",
        ];
        for expression in odd {
            let window = Window::new(expression, SignedDuration::from_hours(1), "UTC");
            assert!(window.is_err(), "{expression}");
        }
        for expression in ["*/5 0-6,22 1,15 jan-mar MON-FRI", "0 0 1-10/3 * sun", "@weekly"] {
            let window = Window::new(expression, SignedDuration::from_hours(1), "UTC");
            assert!(window.is_ok(), "{expression} {window:?}");
        }
    }

    #[test]
    fn daylight_saving_changes_do_not_shift_openings() {
        let berlin = "Europe/Berlin";
        // On 2026-03-29 at 01:00 UTC the clock in Berlin moves to 03:00; on 2026-10-25 at 01:00 UTC
        // it moves to 02:00.
        let rows = [
            ("0 1 * * *", 4, "2026-03-29T00:00:00Z", "2026-03-29T04:00:00Z"),
            ("0 1 * * *", 4, "2026-10-24T23:00:00Z", "2026-10-25T03:00:00Z"),
            // 02:30 does not exist on the first day: the window opens after the clock has moved.
            ("30 2 * * *", 1, "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"),
            // 02:30 exists twice on the second day: the window opens at the first.
            ("30 2 * * *", 1, "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
            // On later days, it opens by the new clock.
            ("30 2 * * *", 1, "2026-03-30T00:30:00Z", "2026-03-30T01:30:00Z"),
            ("30 2 * * *", 1, "2026-10-26T01:30:00Z", "2026-10-26T02:30:00Z"),
        ];
        let second = SignedDuration::from_secs(1);
        for (expression, hours, opens, closes) in rows {
            let duration = SignedDuration::from_hours(hours);
            let window = Window::new(expression, duration, berlin).expect("a window");
            let [opens, closes] =
                [opens, closes].map(|at| at.parse::<Timestamp>().expect("a time"));
            let states = [opens - second, opens, closes - second, closes];
            let states = states.map(|at| window.is_open_at(at));
            assert_eq!(states, [false, true, true, false], "{expression} {opens}");
            assert_eq!(window.closes_after(opens), Some(closes), "{expression} {opens}");
            assert_eq!(window.next_change(opens), Some(closes), "{expression} {opens}");
        }
    }

    #[test]
    fn window_that_reopens_before_closing_stays_open() {
        let now: Timestamp = "2026-11-20T08:30:00Z".parse().expect("a time");
        for (expression, minutes, expect) in [
            ("0 * * * *", 60, None),
            ("* * * * *", 90, None),
            ("0 8,9 * * *", 90, Some("2026-11-20T10:30:00Z")),
        ] {
            let duration = SignedDuration::from_mins(minutes);
            let window = Window::new(expression, duration, "UTC").expect("a window");
            let closes = window.closes_after(now).map(|at| at.to_string());
            assert_eq!(closes.as_deref(), expect, "{expression}");
        }
    }

    #[test]
    fn invalid_schedules_are_rejected() {
        let hour = SignedDuration::from_hours(1);
        assert!(Window::new("0 8 * *", hour, "UTC").is_err());
        assert!(Window::new("61 8 * * *", hour, "UTC").is_err());
        assert!(Window::new("0 0 8 * * *", hour, "UTC").is_err());
        assert!(Window::new("0 8 * * *", hour, "Mars/Base").is_err());
        assert!(Window::new("0 8 * * *", SignedDuration::ZERO, "UTC").is_err());
    }
}
