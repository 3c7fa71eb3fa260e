//! Keeps the texts of sensitive values out of what is found wrong, whoever put them there.
//! It must not know what makes a value sensitive.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeSet;

use hcl::Value;

use crate::config::diagnostic::Diagnostic;
use crate::config::value::{QUOTED_MAX, to_text};

/// What stands in the place of a sensitive text.
const SHOWN: &str = "(sensitive)";
/// Stands for `SHOWN` until all texts are replaced: `sensitive` may be a secret itself.
const MARK: &str = "\0";
/// Texts shorter than this are only replaced where a message quotes them, and nothing else between
/// the quotes: `1` or `on` in the midst of a sentence is no secret, and without it there is no
/// sentence.
const ANYWHERE_MIN: usize = 4;

/// Every text that must not be shown.
#[derive(Debug, Default)]
pub(super) struct SecretTexts {
    /// As they are looked for, the longest first: one may be a part of another.
    texts: RefCell<BTreeSet<(Reverse<usize>, String)>>,
}

impl SecretTexts {
    /// Keeps the texts and numbers in a value out of every message. Its keys are mostly names of
    /// attributes, as messages have them: they are replaced where they are quoted.
    pub(super) fn learn(&self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            Value::Object(items) => {
                for (key, item) in items {
                    self.insert(format!("{key:?}"));
                    self.learn(item);
                }
            }
            Value::String(_) | Value::Number(_) => {
                self.learn_text(&to_text(value).unwrap_or_default());
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn learn_text(&self, text: &str) {
        let quoted = format!("{text:?}");
        if text.len() < ANYWHERE_MIN {
            self.insert(quoted);
            return;
        }
        // Messages quote what they show, and cut what is long.
        self.insert(quoted.trim_matches('"').to_owned());
        if let Some((cut, _)) = text.char_indices().nth(QUOTED_MAX) {
            let start = text.get(..cut).unwrap_or_default();
            self.insert(format!("{start:?}").trim_matches('"').to_owned());
        }
        self.insert(text.to_owned());
        // What is read by its words, such as a schedule, is refused by one of them.
        for word in text.split_whitespace() {
            if word.len() < text.len() && word.len() >= ANYWHERE_MIN {
                self.insert(word.to_owned());
            }
        }
    }

    fn insert(&self, text: String) {
        // Between quotes there is something.
        if text.len() > 2 {
            let length = Reverse(text.len());
            self.texts.borrow_mut().insert((length, text));
        }
    }

    /// The problems without any of them.
    pub(super) fn kept_from(&self, mut problems: Vec<Diagnostic>) -> Vec<Diagnostic> {
        let texts = self.texts.borrow();
        let clean = |shown: &mut String| {
            for (_, text) in texts.iter() {
                if shown.contains(text) {
                    *shown = shown.replace(text, MARK);
                }
            }
            *shown = shown.replace(MARK, SHOWN);
        };
        for problem in &mut problems {
            clean(&mut problem.detail);
            problem.help.iter_mut().for_each(clean);
            problem.values.iter_mut().for_each(|(_, is)| clean(is));
            let ranges = problem.ranges.iter_mut();
            ranges.for_each(|range| clean(&mut range.label));
        }
        problems
    }
}
