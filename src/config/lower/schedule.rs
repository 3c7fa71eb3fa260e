//! Converts schedules, and the inline schedules of budgets, to time windows.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::lower::Blocks;
use crate::config::report::SpannedDiagnostic;
use crate::config::source::Span;
use crate::config::value::nearest_name;
use crate::model::window::{Window, WindowError};

/// Windows by the name of their schedule. `None` if it has an error.
pub(super) type Schedules = BTreeMap<String, Option<Window>>;

pub(super) fn lower_schedules(reader: &Decoder<'_>, blocks: &Blocks<'_>) -> Schedules {
    let sections = reader.decode_sections(blocks, "schedule");
    let windows = sections.iter().map(|section| {
        let window = window_of(reader, section, "start");
        (section.label().to_owned(), window)
    });
    windows.collect()
}

/// The window of a block that has `duration` or `end`, and its cron expression in `start`.
pub(super) fn window_of(
    reader: &Decoder<'_>,
    section: &DecodedBlock,
    start: &str,
) -> Option<Window> {
    let expression = section.text(start)?;
    let zone = section.text("timezone").unwrap_or("UTC");
    let duration = match (section.duration("duration"), section.get("end")) {
        (Some(duration), None) => duration,
        (None, Some(_)) => until_end(reader, section, expression)?,
        (Some(_), Some(end)) => {
            let detail = "duration and end exclude each other.";
            let finding = SpannedDiagnostic::error(ProblemCode::Conflict, end.name_span, detail)
                .also(section.get("duration")?.name_span, "");
            reader.report(section, finding);
            return None;
        }
        (None, None) => {
            if !section.is_set("duration") && !section.is_set("end") {
                let detail =
                    format!("{start} sets when the window opens, but its duration is missing.");
                let finding =
                    SpannedDiagnostic::error(ProblemCode::MissingArgument, section.header, detail)
                        .label("duration is missing")
                        .help("write duration = \"8h\"");
                reader.report(section, finding);
            }
            return None;
        }
    };
    match Window::new(expression, duration, zone) {
        Ok(window) if has_opening(&window) => Some(window),
        Ok(_) => {
            let detail = format!("The schedule {expression:?} never opens.");
            report_schedule(reader, section, section.value_span(start), detail, None);
            None
        }
        Err(error) => {
            report_window_error(reader, section, start, &error);
            None
        }
    }
}

fn has_opening(window: &Window) -> bool {
    window.next_after(Timestamp::UNIX_EPOCH).is_some()
}

fn report_window_error(
    reader: &Decoder<'_>,
    section: &DecodedBlock,
    start: &str,
    error: &WindowError,
) {
    match error {
        WindowError::Cron { expression, why } => {
            let detail = format!("{expression:?} is not a valid schedule: {why}.");
            let help = "write minute, hour, day of month, month and day of week, such as \
                        \"0 8 * * mon-fri\"";
            report_schedule(
                reader,
                section,
                section.value_span(start),
                detail,
                Some(help.to_owned()),
            );
        }
        WindowError::TimeZone(zone) => {
            let detail = format!("There is no time zone named {zone:?}.");
            let names: Vec<String> =
                jiff::tz::db().available().map(|name| name.to_string()).collect();
            let near = nearest_name(zone, names.iter().map(String::as_str));
            let help = match near {
                Some(near) => format!("did you mean {near:?}?"),
                None => "write an IANA name such as \"Europe/Berlin\"".to_owned(),
            };
            report_schedule(reader, section, section.value_span("timezone"), detail, Some(help));
        }
        WindowError::Duration => {
            let detail = "The duration of a window must be from 1m to 744h.".to_owned();
            report_schedule(reader, section, section.value_span("duration"), detail, None);
        }
    }
}

fn report_schedule(
    reader: &Decoder<'_>,
    section: &DecodedBlock,
    span: Span,
    detail: String,
    help: Option<String>,
) {
    let finding = SpannedDiagnostic::error(ProblemCode::InvalidSchedule, span, detail);
    reader.report(section, finding.maybe_help(help));
}

/// Number of starts to compare for the duration of a window: more than a year of days.
const OPENINGS: usize = 400;

/// The times at which an expression matches, as windows of a minute in UTC.
fn matching_minutes(
    reader: &Decoder<'_>,
    section: &DecodedBlock,
    name: &str,
    expression: &str,
) -> Option<Window> {
    match Window::new(expression, SignedDuration::from_mins(1), "UTC") {
        Ok(window) if has_opening(&window) => return Some(window),
        Ok(_) => {
            let detail = format!("The schedule {expression:?} never matches.");
            report_schedule(reader, section, section.value_span(name), detail, None);
        }
        Err(error) => report_window_error(reader, section, name, &error),
    }
    None
}

/// The duration of a window with a start and an end. It is measured in wall-clock time, and must be
/// the same for each start.
fn until_end(reader: &Decoder<'_>, section: &DecodedBlock, start: &str) -> Option<SignedDuration> {
    let end = section.text("end")?;
    let starts = matching_minutes(reader, section, "start", start)?;
    let ends = matching_minutes(reader, section, "end", end)?;
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
        let help = "set duration instead of end, or split it into several schedules".to_owned();
        report_schedule(reader, section, section.value_span("end"), detail, Some(help));
        return None;
    }
    Some(first)
}
