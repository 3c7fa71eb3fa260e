//! The schedule of sweeps as plain arithmetic. It does not use the schedule of the configuration,
//! so that neither hides an error of the other.

use jiff::{SignedDuration, Timestamp};

use crate::model::sweep::SweepKind;

/// When the sweeps of one kind occur: every `period` from `offset` after midnight UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepTimetable {
    /// The kind.
    pub kind: SweepKind,
    /// Seconds between two occurrences. A day is a multiple of it.
    pub period: i64,
    /// Seconds from midnight UTC to an occurrence, less than the period.
    pub offset: i64,
    /// Each cluster runs its sweeps later than the occurrences by a fixed number of seconds below
    /// this one. At most the period.
    pub jitter: i64,
    /// Whether a sweep that was missed for long runs as soon as possible.
    pub catch_up: bool,
}

impl SweepTimetable {
    /// Returns how many seconds a time is after the last occurrence.
    pub fn seconds_after_occurrence(&self, at: Timestamp) -> i64 {
        (at.as_second() - self.offset).rem_euclid(self.period)
    }

    /// Returns the last occurrence up to a time.
    pub fn last_occurrence(&self, at: Timestamp) -> Timestamp {
        let second = at.as_second() - self.seconds_after_occurrence(at);
        Timestamp::from_second(second).unwrap_or(at)
    }

    /// Returns the period.
    pub fn period(&self) -> SignedDuration {
        SignedDuration::from_secs(self.period)
    }
}
