//! What could not be carried over, and why.
//! It must not know in which direction.

use std::fmt;

/// Something that could not be carried over, or that is not there and has to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DroppedField {
    /// Whose it is, such as `NodePool/general`; empty where the path says it.
    pub of: String,
    /// Its path.
    pub path: String,
    /// Why, in a few words.
    pub why: String,
    /// Whether it is not there, and was not dropped.
    pub missing: bool,
}

impl fmt::Display for DroppedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.of.as_str() {
            "" => String::new(),
            of => format!("{of}: "),
        };
        let what = if self.missing { "missing" } else { "dropped" };
        write!(f, "{of}{what} {} ({})", self.path, self.why)
    }
}

/// What is lost of one object.
#[derive(Debug, Default)]
pub(crate) struct DroppedFields {
    pub(crate) of: String,
    pub(crate) all: Vec<DroppedField>,
}

impl DroppedFields {
    pub(crate) fn of(of: impl Into<String>) -> Self {
        Self {
            of: of.into(),
            all: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, path: impl Into<String>, why: impl Into<String>) {
        self.all.push(DroppedField {
            of: self.of.clone(),
            path: path.into(),
            why: why.into(),
            missing: false,
        });
    }

    /// Notes what is not there and has to be.
    pub(crate) fn miss(&mut self, path: impl Into<String>, why: impl Into<String>) {
        self.add(path, why);
        if let Some(last) = self.all.last_mut() {
            last.missing = true;
        }
    }
}

/// A path with one more step.
pub(crate) fn joined(path: &str, step: &str) -> String {
    match (path, step) {
        ("", _) => step.to_owned(),
        (_, "") => path.to_owned(),
        _ => format!("{path}.{step}"),
    }
}
