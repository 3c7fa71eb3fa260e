//! The table of flags, and the values of the converted flags.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use thiserror::Error;

use super::command_line::FlagValue;
use crate::config::value::nearest_name;
use crate::migrate::dropped::{DroppedField, DroppedFields};
use crate::model::duration::parse_go;

/// The table, with one line per flag.
const TABLE: &str = include_str!("flags.tsv");
/// Maximum number of characters of a flag in a message.
const TOLD_MAX: usize = 80;

/// Why the value of a flag is invalid.
#[derive(Debug, Error)]
pub(super) enum FlagError {
    #[error("the format is not MIN:MAX")]
    Range,
    #[error("the value is not a bool")]
    Bool,
    #[error("the value is not a duration")]
    Duration,
    #[error("the value is not a number")]
    Number,
}

/// How the import handles a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagMapping {
    /// The flag is converted.
    Carried,
    /// The flag is dropped.
    Lost,
    /// The flag is not needed.
    Needless,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlagRow {
    pub(super) name: &'static str,
    /// Whether the flag can be given without a value.
    pub(super) is_switch: bool,
    /// Whether the flag can be repeated. Otherwise the last value is used.
    is_list: bool,
    /// The default value.
    default: &'static str,
    pub(super) fate: FlagMapping,
    /// The HCL argument, or the reason why there is none.
    pub(super) what: &'static str,
}

/// Returns all lines of the table.
pub(super) fn flag_rows() -> impl Iterator<Item = FlagRow> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [name, takes, default, fate, what, ..] = cells[..] else {
            return None;
        };
        Some(FlagRow {
            name,
            is_switch: takes == "switch",
            is_list: takes == "list",
            default,
            fate: match fate {
                "carried" => FlagMapping::Carried,
                "lost" => FlagMapping::Lost,
                _ => FlagMapping::Needless,
            },
            what,
        })
    })
}

/// The values of the autoscaler's flags.
#[derive(Clone, Debug, Default)]
pub(super) struct FlagValues {
    /// The object with the flags, such as `Deployment/cluster-autoscaler`.
    pub(super) of: String,
    /// The values of the converted flags, by name.
    values: BTreeMap<&'static str, Vec<String>>,
    /// The values of a group that override flags, by flag name.
    overrides: BTreeMap<&'static str, String>,
}

/// Sorts flags by the table: converted flags, dropped flags, and notes on unneeded flags.
pub(super) fn classify_flags(
    of: &str,
    given: Vec<FlagValue>,
) -> (FlagValues, DroppedFields, Vec<String>) {
    let rows: BTreeMap<&str, FlagRow> = flag_rows().map(|row| (row.name, row)).collect();
    let mut losses = DroppedFields::for_object(of);
    let mut values = FlagValues { of: of.to_owned(), ..FlagValues::default() };
    let mut needless: Vec<(&str, Vec<&str>)> = Vec::new();
    for flag in given {
        let Some(row) = rows.get(flag.name.as_str()) else {
            let suggestion = nearest_name(&flag.name, rows.keys().copied());
            let suggestion =
                suggestion.map_or_else(String::new, |name| format!(": did you mean --{name}?"));
            losses.add(flag_text(&flag), format!("unknown flag{suggestion}"));
            continue;
        };
        match (row.fate, &flag.value) {
            (FlagMapping::Carried, None) if !row.is_switch => {
                losses.add(flag_text(&flag), "the flag has no value")
            }
            (FlagMapping::Carried, value) => {
                let value = value.clone().unwrap_or_else(|| "true".to_owned());
                let values = values.values.entry(row.name).or_default();
                if !row.is_list {
                    values.clear();
                }
                values.push(value);
            }
            (FlagMapping::Lost, value) => {
                let value = value.as_deref().unwrap_or("true");
                if !is_same_value(value, row.default) {
                    losses.add(flag_text(&flag), row.what);
                }
            }
            (FlagMapping::Needless, _) => {
                match needless.iter_mut().find(|entry| entry.0 == row.what) {
                    Some((_, names)) if names.contains(&row.name) => {}
                    Some((_, names)) => names.push(row.name),
                    None => needless.push((row.what, vec![row.name])),
                }
            }
        }
    }
    (
        values,
        losses,
        needless
            .into_iter()
            .map(|(why, names)| {
                let names: Vec<String> = names.iter().map(|name| format!("--{name}")).collect();
                format!("{of}: not needed {} ({why})", names.join(", "))
            })
            .collect(),
    )
}

/// Formats a flag for a message.
fn flag_text(flag: &FlagValue) -> String {
    let FlagValue { name, value } = flag;
    let text = match value {
        Some(value) => format!("--{name}={value}"),
        None => format!("--{name}"),
    };
    text.chars().take(TOLD_MAX).collect()
}

/// Returns whether two values are equal: bools, durations and numbers have several spellings.
fn is_same_value(one: &str, other: &str) -> bool {
    one == other
        || parse_bool(one).is_some_and(|value| parse_bool(other) == Some(value))
        || parse_go(one).is_some_and(|length| parse_go(other) == Some(length))
        || one.parse::<f64>().is_ok_and(|number| other.parse() == Ok(number))
}

/// Parses a bool like Go.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

impl FlagValues {
    /// Overrides flags with the values of a group.
    pub(super) fn with_overrides(&self, overrides: BTreeMap<&'static str, String>) -> Self {
        Self { overrides, ..self.clone() }
    }

    /// Returns all values of a flag, in order.
    pub(super) fn values_of(&self, name: &str) -> &[String] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the effective value of a flag.
    pub(super) fn value_of(&self, name: &str) -> Option<&str> {
        self.overrides.get(name).or_else(|| self.values_of(name).last()).map(String::as_str)
    }

    /// Formats a flag with its value for a message.
    pub(super) fn flag_text(&self, name: &str) -> String {
        flag_text(&FlagValue {
            name: name.to_owned(),
            value: self.value_of(name).map(str::to_owned),
        })
    }

    /// Parses the value of a flag. Drops the flag with the reason if it is invalid.
    pub(super) fn parsed_value<T>(
        &self,
        name: &str,
        losses: &mut DroppedFields,
        parse: impl Fn(&str) -> Result<T, FlagError>,
    ) -> Option<T> {
        parse(self.value_of(name)?)
            .map_err(|error| self.drop_flag(self.flag_text(name), error.to_string(), losses))
            .ok()
    }

    /// Reports a dropped flag of the object that has the flags.
    pub(super) fn drop_flag(&self, path: String, why: String, losses: &mut DroppedFields) {
        losses.all.push(DroppedField::new(self.of.as_str(), path, why));
    }

    /// Returns a bool, or the default.
    pub(super) fn switch(&self, name: &str, default: bool, losses: &mut DroppedFields) -> bool {
        self.parsed_value(name, losses, |text| parse_bool(text).ok_or(FlagError::Bool))
            .unwrap_or(default)
    }

    /// Returns a Go duration that is not negative.
    pub(super) fn duration(
        &self,
        name: &str,
        losses: &mut DroppedFields,
    ) -> Option<SignedDuration> {
        self.parsed_value(name, losses, |text| {
            let length = parse_go(text).filter(|length| !length.is_negative());
            length.ok_or(FlagError::Duration)
        })
    }

    /// Returns an integer that is not negative.
    pub(super) fn count(&self, name: &str, losses: &mut DroppedFields) -> Option<i64> {
        self.parsed_value(name, losses, |text| {
            let count = text.trim().parse::<i64>().ok().filter(|count| *count >= 0);
            count.ok_or(FlagError::Number)
        })
    }

    /// Returns a number that is not negative.
    pub(super) fn number(&self, name: &str, losses: &mut DroppedFields) -> Option<f64> {
        self.parsed_value(name, losses, |text| {
            let number = text.trim().parse::<f64>().ok();
            let number = number.filter(|number| number.is_finite() && *number >= 0.0);
            number.ok_or(FlagError::Number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::command_line::{parse_flags, split_words};
    use super::{FlagMapping, TABLE, classify_flags, flag_rows};

    #[test]
    fn flag_table_has_one_sorted_row_per_flag() {
        let rows: Vec<_> = flag_rows().collect();
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(rows.len(), lines.clone().count());
        assert!(lines.clone().all(|line| line.split('\t').count() == 5));
        assert!(rows.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(rows.iter().all(|row| !row.what.is_empty()));
        for line in lines {
            let cells: Vec<&str> = line.split('\t').collect();
            assert!(["switch", "value", "list"].contains(&cells[1]), "{line}");
            assert!(["carried", "lost", "needless"].contains(&cells[3]), "{line}");
        }
    }

    #[test]
    fn each_flag_is_classified_as_its_table_row() {
        for row in flag_rows() {
            // The values of the last two arms are not defaults.
            let text = match (row.is_switch, row.default) {
                (true, "true") => format!("--{}=false", row.name),
                (true, _) => format!("--{}", row.name),
                (false, _) => format!("--{}=77:777:x", row.name),
            };
            let (given, _) = parse_flags(&split_words(&text), |_| None);
            let (flags, losses, notes) = classify_flags("it", given);
            assert_eq!(
                flags.value_of(row.name).is_some(),
                row.fate == FlagMapping::Carried,
                "{text}"
            );
            assert_eq!(losses.all.len(), usize::from(row.fate == FlagMapping::Lost), "{text}");
            assert_eq!(notes.len(), usize::from(row.fate == FlagMapping::Needless), "{text}");
        }
    }

    #[test]
    fn default_flags_are_no_loss_and_typos_get_a_suggestion() {
        let rows = [
            ("--balance-similar-node-groups=false", ""),
            ("--new-pod-scale-up-delay=0m0s", ""),
            ("--ok-total-unready-count=3.0", ""),
            (
                "--scale-down-unneded-time=1m",
                "unknown flag: did you mean --scale-down-unneeded-time?",
            ),
            ("--frobnicate", "unknown flag"),
            ("--max-nodes-total", "the flag has no value"),
        ];
        for (text, expect) in rows {
            let (given, _) = parse_flags(&split_words(text), |_| None);
            let (_, losses, _) = classify_flags("it", given);
            let why = losses.all.first().map_or("", |loss| loss.why.as_str());
            assert!(why.contains(expect) && why.is_empty() == expect.is_empty(), "{text}: {why}");
        }
    }
}
