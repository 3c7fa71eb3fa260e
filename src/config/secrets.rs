//! Redacts sensitive values in diagnostics.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeSet;

use hcl::Value;

use crate::config::diagnostic::Diagnostic;
use crate::config::value::{QUOTED_MAX, to_text};

/// The replacement for a sensitive string.
const SHOWN: &str = "(sensitive)";
/// A placeholder for `SHOWN` until all strings are replaced: `sensitive` may be a secret itself.
const MARK: &str = "\0";
/// Shorter strings are only replaced if a message quotes exactly them: `1` or `on` within a
/// sentence is not a secret.
const ANYWHERE_MIN: usize = 4;

/// All strings that must not be shown.
#[derive(Debug, Default)]
pub(super) struct SecretTexts {
    /// The strings in search order, the longest first, because a string may be a part of another.
    texts: RefCell<BTreeSet<(Reverse<usize>, String)>>,
}

impl SecretTexts {
    /// Adds the strings and numbers in a value. Keys are mostly names of attributes, which messages
    /// contain, so keys are only replaced if they are quoted.
    pub(super) fn add_values(&self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.add_values(item)),
            Value::Object(items) => {
                for (key, item) in items {
                    self.insert(format!("{key:?}"));
                    self.add_values(item);
                }
            }
            Value::String(_) | Value::Number(_) => {
                self.add_string(&to_text(value).unwrap_or_default());
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn add_string(&self, text: &str) {
        let quoted = format!("{text:?}");
        if text.len() < ANYWHERE_MIN {
            self.insert(quoted);
            return;
        }
        // Messages quote values, and shorten long ones.
        self.insert(quoted.trim_matches('"').to_owned());
        if let Some((cut, _)) = text.char_indices().nth(QUOTED_MAX) {
            let start = text.get(..cut).unwrap_or_default();
            self.insert(format!("{start:?}").trim_matches('"').to_owned());
        }
        self.insert(text.to_owned());
        // A message about a schedule may show one field of it.
        for word in text.split_whitespace() {
            if word.len() < text.len() && word.len() >= ANYWHERE_MIN {
                self.insert(word.to_owned());
            }
        }
    }

    fn insert(&self, text: String) {
        // The string between the quotes must not be empty.
        if text.len() > 2 {
            let length = Reverse(text.len());
            self.texts.borrow_mut().insert((length, text));
        }
    }

    /// Redacts all diagnostics.
    pub(super) fn kept_from(&self, mut problems: Vec<Diagnostic>) -> Vec<Diagnostic> {
        let texts = self.texts.borrow();
        for problem in &mut problems {
            let values = problem.values.iter_mut().map(|(_, value)| value);
            let labels = problem.ranges.iter_mut().map(|range| &mut range.label);
            let messages = problem.help.iter_mut().chain(values).chain(labels);
            for message in messages.chain([&mut problem.detail]) {
                for (_, text) in texts.iter() {
                    if message.contains(text) {
                        *message = message.replace(text, MARK);
                    }
                }
                *message = message.replace(MARK, SHOWN);
            }
        }
        problems
    }
}
