//! Fields that could not be converted, with the reason.

use std::fmt;

/// A field that could not be converted, or a required field that is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DroppedField {
    /// The object that has the field, such as `NodePool/general`. Empty if the path includes it.
    pub of: String,
    /// The path of the field.
    pub path: String,
    /// The reason, in a few words.
    pub why: String,
    /// True if a required field is missing, false if a field was dropped.
    pub missing: bool,
}

impl DroppedField {
    /// Returns a field of `of` that could not be converted.
    pub(crate) fn new(
        of: impl Into<String>,
        path: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self { of: of.into(), path: path.into(), why: why.into(), missing: false }
    }
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

/// The dropped fields of one object.
#[derive(Debug, Default)]
pub(crate) struct DroppedFields {
    pub(crate) of: String,
    pub(crate) all: Vec<DroppedField>,
}

impl DroppedFields {
    pub(crate) fn for_object(of: impl Into<String>) -> Self {
        Self { of: of.into(), all: Vec::new() }
    }

    pub(crate) fn add(&mut self, path: impl Into<String>, why: impl Into<String>) {
        self.all.push(DroppedField::new(self.of.as_str(), path, why));
    }

    /// Adds a required field that is missing.
    pub(crate) fn add_missing(&mut self, path: impl Into<String>, why: impl Into<String>) {
        self.all
            .push(DroppedField { missing: true, ..DroppedField::new(self.of.as_str(), path, why) });
    }
}

/// Appends a step to a path.
pub(crate) fn join_path(path: &str, step: &str) -> String {
    match (path, step) {
        ("", _) => step.to_owned(),
        (_, "") => path.to_owned(),
        _ => format!("{path}.{step}"),
    }
}
