//! Converts schedules, and the inline schedules of budgets, to time windows.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::lower::report_exclusive;
use crate::config::report::error_at;
use crate::config::value::{did_you_mean, listed_names, nearest_name};
use crate::model::cron_schedule::{CronSchedule, ScheduleError};
use crate::model::sweep::{SweepKind, SweepSchedule};
use crate::model::window::Window;

/// Windows by the name of their schedule. `None` if it has an error.
pub(super) type Schedules = BTreeMap<String, Option<Window>>;

pub(super) fn lower_schedules(reader: &Decoder<'_>) -> Schedules {
    let sections = reader.decode_sections("schedule");
    let windows = sections.iter().map(|section| {
        let window = window_of(section, "start");
        (section.label().to_owned(), window)
    });
    windows.collect()
}

/// Schedules of sweeps, by kind.
pub(super) type SweepSchedules = BTreeMap<SweepKind, SweepSchedule>;

/// The value of `schedule` with which a cluster has no sweeps of a kind.
const NO_SCHEDULE: &str = "none";

/// The schedules in the `sweep` blocks of a file or a cluster, by kind. Those of a cluster replace
/// those of the same kind in `top_level`.
pub(super) fn sweep_schedules(
    sections: &[impl Borrow<DecodedBlock>],
    top_level: Option<&SweepSchedules>,
) -> SweepSchedules {
    let mut schedules = top_level.cloned().unwrap_or_default();
    for section in sections.iter().map(Borrow::borrow) {
        let Some(kind) = sweep_kind(section) else {
            continue;
        };
        if top_level.is_some() && section.text("schedule") == Some(NO_SCHEDULE) {
            schedules.remove(&kind);
        } else if let Some(schedule) = sweep_schedule(section) {
            schedules.insert(kind, schedule);
        }
    }
    schedules
}

/// The kind of a sweep, or an error.
fn sweep_kind(section: &DecodedBlock) -> Option<SweepKind> {
    let kind = SweepKind::parse(section.label());
    if kind.is_none() && !section.label().is_empty() {
        let detail = format!("There is no sweep of the kind {:?}.", section.label());
        let names = SweepKind::NAMES;
        let help = did_you_mean(section.label(), names).or(listed_names(&names));
        error_at(ProblemCode::InvalidLabel, section.label_span(), detail)
            .maybe_help(help)
            .report(section);
    }
    kind
}

fn sweep_schedule(section: &DecodedBlock) -> Option<SweepSchedule> {
    let zone = section.text("timezone").unwrap_or("UTC");
    Some(SweepSchedule {
        schedule: new_schedule(section, "schedule", zone, "occurs")?,
        jitter: section.duration("jitter").unwrap_or_default(),
        catch_up: section.flag("catch_up") == Some(true),
    })
}

/// The window of a block that has `duration` or `end`, and its cron expression in `start`.
pub(super) fn window_of(section: &DecodedBlock, start: &str) -> Option<Window> {
    let expression = section.text(start)?;
    let zone = section.text("timezone").unwrap_or("UTC");
    let duration = match (section.duration("duration"), section.get("end")) {
        (Some(duration), None) => duration,
        (None, Some(_)) => until_end(section, expression)?,
        (Some(_), Some(_)) => {
            report_exclusive(section, "duration", "end");
            return None;
        }
        (None, None) => {
            if !section.is_set("duration") && !section.is_set("end") {
                let detail =
                    format!("{start} sets when the window opens, but its duration is missing.");
                error_at(ProblemCode::MissingArgument, section.header, detail)
                    .label("duration is missing")
                    .help("write duration = \"8h\"")
                    .report(section);
            }
            return None;
        }
    };
    new_window(section, start, duration, zone, "opens")
}

/// The window with the cron expression in this argument. Reports an error if the expression is
/// invalid or never matches; `opens` is the verb in the message.
fn new_window(
    section: &DecodedBlock,
    name: &str,
    duration: SignedDuration,
    zone: &str,
    opens: &str,
) -> Option<Window> {
    let schedule = new_schedule(section, name, zone, opens)?;
    let window = Window::with_schedule(schedule, duration);
    if window.is_none() {
        let detail = "The duration of a window must be from 1m to 744h.";
        section.error(ProblemCode::InvalidSchedule, section.value_span("duration"), detail);
    }
    window
}

/// The schedule with the cron expression in this argument, or an error: also if it never `occurs`.
fn new_schedule(
    section: &DecodedBlock,
    name: &str,
    zone: &str,
    occurs: &str,
) -> Option<CronSchedule> {
    let expression = section.text(name)?;
    let (argument, detail, help) = match CronSchedule::new(expression, zone) {
        Ok(schedule) if schedule.next_after(Timestamp::UNIX_EPOCH).is_some() => {
            return Some(schedule);
        }
        Ok(_) => (name, format!("The schedule {expression:?} never {occurs}."), None),
        Err(ScheduleError::Cron { expression, why }) => {
            let help = "write minute, hour, day of month, month and day of week, such as \
                        \"0 8 * * mon-fri\"";
            let detail = format!("{expression:?} is not a valid schedule: {why}.");
            (name, detail, Some(help.to_owned()))
        }
        Err(ScheduleError::TimeZone(zone)) => {
            let names = jiff::tz::db().available().map(|name| name.to_string());
            let names: Vec<String> = names.collect();
            let help = match nearest_name(&zone, names.iter().map(String::as_str)) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "write an IANA name such as \"Europe/Berlin\"".to_owned(),
            };
            let detail = format!("There is no time zone named {zone:?}.");
            ("timezone", detail, Some(help))
        }
    };
    error_at(ProblemCode::InvalidSchedule, section.value_span(argument), detail)
        .maybe_help(help)
        .report(section);
    None
}

/// Number of starts to compare for the duration of a window: more than a year of days.
const OPENINGS: usize = 400;

/// The duration of a window with a start and an end. It is measured in wall-clock time, and must be
/// the same for each start.
fn until_end(section: &DecodedBlock, start: &str) -> Option<SignedDuration> {
    let end = section.text("end")?;
    // The times at which an expression matches, as windows of a minute in UTC.
    let minute = SignedDuration::from_mins(1);
    let starts = new_window(section, "start", minute, "UTC", "matches")?;
    let ends = new_window(section, "end", minute, "UTC", "matches")?;
    let mut at = Timestamp::UNIX_EPOCH;
    let mut durations = Vec::new();
    for _ in 0..OPENINGS {
        let Some(opened) = starts.next_after(at) else {
            break;
        };
        let Some(closed) = ends.next_after(opened) else {
            break;
        };
        durations.push(closed.duration_since(opened));
        at = opened;
    }
    let first = durations.first().copied()?;
    if durations.iter().any(|duration| *duration != first) {
        let detail =
            format!("The time from {start:?} to {end:?} varies, so this is not a valid window.");
        let help = "set duration instead of end, or split it into several schedules";
        error_at(ProblemCode::InvalidSchedule, section.value_span("end"), detail)
            .help(help)
            .report(section);
        return None;
    }
    Some(first)
}
