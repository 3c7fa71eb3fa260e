//! The table of flags, and what was said by those that count.
//! It must not know how anything becomes a block.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::command_line::FlagValue;
use crate::config::value::nearest;
use crate::migrate::dropped::{DroppedField, DroppedFields};
use crate::model::duration::parse_go;

/// The table: a line for each flag.
const TABLE: &str = include_str!("flags.tsv");
/// Characters of a value that are told.
const TOLD_MAX: usize = 80;

/// What becomes of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagMapping {
    /// Something says the same.
    Carried,
    /// Nothing does.
    Lost,
    /// Nothing has to.
    Needless,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlagRow {
    pub(super) name: &'static str,
    /// Whether it may stand alone.
    pub(super) is_switch: bool,
    /// Whether each time it is given counts, and not only the last.
    is_list: bool,
    /// What is so without it.
    default: &'static str,
    pub(super) fate: FlagMapping,
    /// The argument, or why there is none.
    pub(super) what: &'static str,
}

/// All rows, by name.
pub(super) fn table() -> impl Iterator<Item = FlagRow> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let mut cells = line.split('\t');
        let mut next = || cells.next();
        let (name, takes, default, fate, what) = (next()?, next()?, next()?, next()?, next()?);
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

/// What an autoscaler was told.
#[derive(Clone, Debug, Default)]
pub(super) struct FlagValues {
    /// Who was told, such as `Deployment/cluster-autoscaler`.
    pub(super) of: String,
    /// Values of the flags that are carried, by name.
    values: BTreeMap<&'static str, Vec<String>>,
    /// What single groups say in the place of flags, by their names.
    own: BTreeMap<&'static str, String>,
}

/// Sorts flags by the table: what counts, what is lost, and what need not be said.
pub(super) fn sort(of: &str, given: Vec<FlagValue>) -> (FlagValues, DroppedFields, Vec<String>) {
    let rows: BTreeMap<&str, FlagRow> = table().map(|row| (row.name, row)).collect();
    let mut losses = DroppedFields::of(of);
    let mut said = FlagValues {
        of: of.to_owned(),
        ..FlagValues::default()
    };
    let mut needless: Vec<(&str, Vec<&str>)> = Vec::new();
    for flag in given {
        let Some(row) = rows.get(flag.name.as_str()) else {
            let near = nearest(&flag.name, rows.keys().copied());
            let near = near.map_or_else(String::new, |near| format!(": is --{near} meant?"));
            losses.add(told(&flag), format!("an unknown flag{near}"));
            continue;
        };
        match (row.fate, &flag.value) {
            (FlagMapping::Carried, None) if !row.is_switch => {
                losses.add(told(&flag), "it has no value")
            }
            (FlagMapping::Carried, value) => {
                let value = value.clone().unwrap_or_else(|| "true".to_owned());
                let values = said.values.entry(row.name).or_default();
                if !row.is_list {
                    values.clear();
                }
                values.push(value);
            }
            (FlagMapping::Lost, value) => {
                let value = value.as_deref().unwrap_or("true");
                if !is_same(value, row.default) {
                    losses.add(told(&flag), row.what);
                }
            }
            (FlagMapping::Needless, _) => match needless.iter_mut().find(|own| own.0 == row.what) {
                Some((_, names)) if names.contains(&row.name) => {}
                Some((_, names)) => names.push(row.name),
                None => needless.push((row.what, vec![row.name])),
            },
        }
    }
    let note = |(why, names): (&str, Vec<&str>)| {
        let names: Vec<String> = names.iter().map(|name| format!("--{name}")).collect();
        format!("{of}: not needed {} ({why})", names.join(", "))
    };
    (said, losses, needless.into_iter().map(note).collect())
}

/// A flag as it is told.
fn told(flag: &FlagValue) -> String {
    let FlagValue { name, value } = flag;
    let text = match value {
        Some(value) => format!("--{name}={value}"),
        None => format!("--{name}"),
    };
    text.chars().take(TOLD_MAX).collect()
}

/// Whether two values are one: truths, durations and numbers have several spellings.
fn is_same(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    let truth = |text: &str| truth(text);
    let same = |both: (Option<bool>, Option<bool>)| matches!(both, (Some(a), Some(b)) if a == b);
    let lengths = (parse_go(one), parse_go(other));
    one == other
        || same((truth(one), truth(other)))
        || matches!(lengths, (Some(a), Some(b)) if a == b)
        || matches!((number(one), number(other)), (Some(a), Some(b)) if a == b)
}

/// A truth as Go reads one.
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

impl FlagValues {
    /// The same with what a group says in the place of some flags.
    pub(super) fn with(&self, own: BTreeMap<&'static str, String>) -> Self {
        Self {
            own,
            ..self.clone()
        }
    }

    /// All values of a flag, in order.
    pub(super) fn list(&self, name: &str) -> &[String] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// The value of a flag that counts.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let own = self.own.get(name);
        own.or_else(|| self.list(name).last()).map(String::as_str)
    }

    /// The flag with its value, as it is told.
    pub(super) fn told(&self, name: &str) -> String {
        told(&FlagValue {
            name: name.to_owned(),
            value: self.text(name).map(str::to_owned),
        })
    }

    /// What `parse` makes of a value; what it makes nothing of is lost, and why it is.
    pub(super) fn parsed<T>(
        &self,
        name: &str,
        losses: &mut DroppedFields,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        match parse(self.text(name)?) {
            Ok(value) => Some(value),
            Err(why) => {
                losses.all.push(DroppedField {
                    of: self.of.clone(),
                    path: self.told(name),
                    why,
                    missing: false,
                });
                None
            }
        }
    }

    /// A truth, or what is so without it.
    pub(super) fn switch(&self, name: &str, default: bool, losses: &mut DroppedFields) -> bool {
        let parse = |text: &str| truth(text).ok_or_else(|| "it is no bool".to_owned());
        self.parsed(name, losses, parse).unwrap_or(default)
    }

    /// A duration of Go's that is not negative.
    pub(super) fn duration(
        &self,
        name: &str,
        losses: &mut DroppedFields,
    ) -> Option<SignedDuration> {
        self.parsed(name, losses, |text| {
            let length = parse_go(text).filter(|own| !own.is_negative());
            length.ok_or_else(|| "it is no duration".to_owned())
        })
    }

    /// An integer that is not negative.
    pub(super) fn count(&self, name: &str, losses: &mut DroppedFields) -> Option<i64> {
        self.parsed(name, losses, |text| {
            let count = text.trim().parse::<i64>().ok().filter(|own| *own >= 0);
            count.ok_or_else(|| "it is no number".to_owned())
        })
    }

    /// A number.
    pub(super) fn number(&self, name: &str, losses: &mut DroppedFields) -> Option<f64> {
        self.parsed(name, losses, |text| {
            let number = text.trim().parse::<f64>().ok();
            let number = number.filter(|own| own.is_finite() && *own >= 0.0);
            number.ok_or_else(|| "it is no number".to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::command_line::{flags, split};
    use super::{FlagMapping, TABLE, sort, table};

    #[test]
    fn every_line_is_a_row_and_no_flag_has_two() {
        let rows: Vec<_> = table().collect();
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(rows.len(), lines.clone().count());
        assert!(lines.clone().all(|line| line.split('\t').count() == 5));
        assert!(rows.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(rows.iter().all(|row| !row.what.is_empty()));
        for line in lines {
            let cells: Vec<&str> = line.split('\t').collect();
            assert!(["switch", "value", "list"].contains(&cells[1]), "{line}");
            assert!(
                ["carried", "lost", "needless"].contains(&cells[3]),
                "{line}"
            );
        }
    }

    #[test]
    fn each_flag_has_the_fate_of_its_row() {
        for row in table() {
            // The last two are nobody's default.
            let text = match (row.is_switch, row.default) {
                (true, "true") => format!("--{}=false", row.name),
                (true, _) => format!("--{}", row.name),
                (false, _) => format!("--{}=77:777:x", row.name),
            };
            let (given, _) = flags(&split(&text), |_| None);
            let (said, losses, notes) = sort("it", given);
            assert_eq!(
                said.text(row.name).is_some(),
                row.fate == FlagMapping::Carried,
                "{text}"
            );
            assert_eq!(
                losses.all.len(),
                usize::from(row.fate == FlagMapping::Lost),
                "{text}"
            );
            assert_eq!(
                notes.len(),
                usize::from(row.fate == FlagMapping::Needless),
                "{text}"
            );
        }
    }

    #[test]
    fn defaults_are_no_loss_and_typing_errors_have_a_neighbour() {
        let rows = [
            ("--balance-similar-node-groups=false", ""),
            ("--new-pod-scale-up-delay=0m0s", ""),
            ("--ok-total-unready-count=3.0", ""),
            (
                "--scale-down-unneded-time=1m",
                "unknown flag: is --scale-down-unneeded-time meant?",
            ),
            ("--frobnicate", "an unknown flag"),
            ("--max-nodes-total", "it has no value"),
        ];
        for (text, expect) in rows {
            let (given, _) = flags(&split(text), |_| None);
            let (_, losses, _) = sort("it", given);
            let why = losses.all.first().map_or("", |loss| loss.why.as_str());
            assert!(
                why.contains(expect) && why.is_empty() == expect.is_empty(),
                "{text}: {why}"
            );
        }
    }
}
