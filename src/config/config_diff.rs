//! The arguments of a configuration in a form that may be shown, and the differences between two
//! configurations.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use hcl::Value;

use crate::model::template_hash::fnv1a;

/// Maximum number of characters shown of a value.
const SHOWN_MAX: usize = 100;

/// Every decoded block with every argument it sets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConfigValues(BTreeMap<String, BTreeMap<&'static str, ConfigEntry>>);

/// A value: the text that may be shown, and a hash of the complete value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConfigEntry {
    shown: String,
    print: u64,
}

impl ConfigValues {
    /// Hash of the configuration. The hash is the same on every host and for every build.
    pub fn config_hash(&self) -> u32 {
        let mut all = String::new();
        for (place, arguments) in &self.0 {
            let _ = write!(all, "{place:?}");
            for (name, argument) in arguments {
                let _ = write!(all, " {name} {:016x}", argument.print);
            }
            all.push('\n');
        }
        u32::try_from(fnv1a(&all) >> 32).unwrap_or(u32::MAX)
    }

    /// Adds a block, which may be empty.
    pub(super) fn add_block(&mut self, place: &str) {
        self.0.entry(place.to_owned()).or_default();
    }

    /// Adds an argument of a block. A sensitive value is stored only as a hash.
    pub(super) fn add_argument(
        &mut self,
        place: &str,
        name: &'static str,
        value: &Value,
        sensitive: bool,
    ) {
        let text = serde_json::to_string(value).unwrap_or_default();
        let print = fnv1a(&text);
        let shown = match (sensitive, text.char_indices().nth(SHOWN_MAX)) {
            (true, _) => "(sensitive)".to_owned(),
            (false, Some((end, _))) => format!("{}…", text.get(..end).unwrap_or_default()),
            (false, None) => text,
        };
        let arguments = self.0.entry(place.to_owned()).or_default();
        arguments.insert(name, ConfigEntry { shown, print });
    }

    /// The changes from this configuration to `new`, block by block in order: `+` for added, `-`
    /// for removed, `~` for changed.
    pub fn changes_to(&self, new: &Self) -> Vec<String> {
        let empty = BTreeMap::new();
        let (mut changes, mut gone) = (Vec::new(), None);
        for place in union_keys(&self.0, &new.0) {
            let (old_block, new_block) = (self.0.get(place), new.0.get(place));
            match (old_block, new_block) {
                (None, Some(_)) => changes.push(format!("+ {place}")),
                (Some(_), None) => {
                    // Blocks within a removed block are not listed.
                    let parent = gone.as_ref();
                    if parent.is_none_or(|parent: &String| !place.starts_with(parent)) {
                        changes.push(format!("- {place}"));
                        gone = Some(format!("{place}, "));
                    }
                    continue;
                }
                _ => {}
            }
            let (old, new) = (old_block.unwrap_or(&empty), new_block.unwrap_or(&empty));
            for name in union_keys(old, new) {
                match (old.get(name), new.get(name)) {
                    (Some(from), Some(to)) if from != to => {
                        changes.push(format!("~ {place}: {name} = {} → {}", from.shown, to.shown));
                    }
                    (None, Some(to)) => {
                        changes.push(format!("+ {place}: {name} = {}", to.shown));
                    }
                    (Some(from), None) => {
                        changes.push(format!("- {place}: {name} = {}", from.shown));
                    }
                    _ => {}
                }
            }
        }
        changes
    }
}

impl fmt::Debug for ConfigValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arguments: usize = self.0.values().map(BTreeMap::len).sum();
        write!(f, "{} blocks, {arguments} arguments", self.0.len())
    }
}

/// The keys of both maps, in order.
fn union_keys<'a, K: Ord, V>(
    one: &'a BTreeMap<K, V>,
    other: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = &'a K> {
    let mut keys: Vec<&K> = one.keys().chain(other.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
}
