//! Cron schedules: expressions of five fields, evaluated in a time zone.

use std::fmt;
use std::str::FromStr;

use croner::Cron;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use thiserror::Error;

/// Why a schedule is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// The cron expression does not follow the five-field grammar.
    #[error("{expression:?} is not a cron expression of five fields: {why}")]
    Cron {
        /// The expression.
        expression: String,
        /// The error.
        why: String,
    },
    /// The time zone does not exist.
    #[error("no time zone is named {0:?}; write an IANA name such as Europe/Berlin")]
    TimeZone(String),
}

/// A cron schedule in a time zone. If it names one minute and one hour, a time that the change to
/// summer time skips occurs when the clock has moved, and a time that occurs twice counts once, the
/// first time. Other schedules follow the clock.
#[derive(Clone)]
pub struct CronSchedule {
    expression: String,
    cron: Box<Cron>,
    zone: TimeZone,
}

impl PartialEq for CronSchedule {
    fn eq(&self, other: &Self) -> bool {
        self.expression == other.expression && self.zone == other.zone
    }
}

impl Eq for CronSchedule {}

impl fmt::Debug for CronSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CronSchedule({:?} in {})", self.expression, self.zone())
    }
}

/// Returns whether a part of a field is valid in every implementation of cron. Some implementations
/// define `L`, `W`, `#`, `?` and `+`, each with a different meaning, so these are rejected.
fn is_posix(part: &str) -> bool {
    let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = part.len() == 3 && part.bytes().all(|byte| byte.is_ascii_alphabetic());
    part == "*" || is_number || is_name
}

fn parse_cron(expression: &str) -> Result<Cron, ScheduleError> {
    let invalid = |why| ScheduleError::Cron { expression: expression.to_owned(), why };
    if !expression.starts_with('@') && expression.split_whitespace().count() != 5 {
        let why = "wants minute, hour, day of month, month, day of week";
        return Err(invalid(why.to_owned()));
    }
    let mut fields = expression.split_whitespace();
    let unsupported =
        fields.find(|field| !field.starts_with('@') && !field.split([',', '-', '/']).all(is_posix));
    if let Some(field) = unsupported {
        let why = format!("{field:?} is not made of numbers, names, `*`, `,`, `-` and `/`");
        return Err(invalid(why));
    }
    Cron::from_str(expression).map_err(|error| invalid(error.to_string()))
}

impl CronSchedule {
    /// Creates a schedule from a cron expression (five fields, or a shortcut such as `@daily`) and
    /// the IANA name of a time zone.
    pub fn new(expression: &str, zone: &str) -> Result<Self, ScheduleError> {
        let zone = TimeZone::get(zone).map_err(|_| ScheduleError::TimeZone(zone.to_owned()))?;
        let cron = Box::new(parse_cron(expression)?);
        Ok(Self { expression: expression.to_owned(), cron, zone })
    }

    /// Returns the first occurrence after `from`. `None` if the schedule never occurs.
    pub fn next_after(&self, from: Timestamp) -> Option<Timestamp> {
        let zoned = from.to_zoned(self.zone.clone());
        self.cron.find_next_occurrence(&zoned, false).ok().map(|next| next.timestamp())
    }

    /// Returns the cron expression as written.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Returns the name of its time zone.
    pub fn zone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }
}
