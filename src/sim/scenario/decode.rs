//! A typed decoder for literal HCL. It collects all errors with their positions.

use hcl_edit::Span;
use hcl_edit::expr::{Expression, ObjectKey};
use hcl_edit::structure::{Attribute, Block, Body, Structure};
use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};

use crate::model::labels::Labels;
use crate::model::quantity::Resources;
use crate::sim::scenario::Mistake;

/// Reads one source and collects its mistakes.
#[derive(Debug)]
pub struct ScenarioDecoder<'a> {
    source: &'a str,
    mistakes: Vec<Mistake>,
}

impl<'a> ScenarioDecoder<'a> {
    /// Creates a decoder for a source.
    pub fn new(source: &'a str) -> Self {
        Self { source, mistakes: Vec::new() }
    }

    /// All errors, sorted by position.
    pub fn into_mistakes(mut self) -> Vec<Mistake> {
        self.mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
        self.mistakes
    }

    /// Adds an error at a byte offset of the source.
    pub fn add_mistake(&mut self, offset: usize, text: &str) {
        let before = self.source.get(..offset).unwrap_or(self.source);
        let last_line = before.rsplit('\n').next().unwrap_or_default();
        self.mistakes.push(Mistake {
            line: before.matches('\n').count() + 1,
            column: last_line.chars().count() + 1,
            text: text.to_owned(),
        });
    }

    /// Adds an error at the position of an item.
    pub fn add_mistake_in(&mut self, item: &impl Span, text: &str) {
        self.add_mistake(item.span().map_or(0, |span| span.start), text);
    }

    /// Returns the only label of a block.
    pub fn only_label<'b>(&mut self, block: &'b Block, what: &str) -> Option<&'b str> {
        match block.labels.as_slice() {
            [label] => Some(label.as_str()),
            _ => {
                let text = format!("a {} block has one label: {what}", block.ident.as_str());
                self.add_mistake_in(block, &text);
                None
            }
        }
    }

    /// Adds an error for every unknown argument and block.
    pub fn check_known_names(&mut self, body: &Body, arguments: &[&str], blocks: &[&str]) {
        for item in body.iter() {
            let (name, known) = match item {
                Structure::Attribute(attribute) => (attribute.key.as_str(), arguments),
                Structure::Block(block) => (block.ident.as_str(), blocks),
            };
            if !known.contains(&name) {
                let hint = known
                    .iter()
                    .find(|known| strsim::damerau_levenshtein(known, name) <= 2)
                    .map_or(String::new(), |known| format!("; did you mean `{known}`?"));
                self.add_mistake_in(item, &format!("`{name}` is not expected here{hint}"));
            }
        }
    }

    fn read_value<T>(
        &mut self,
        body: &Body,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&Expression) -> Option<T>,
    ) -> Option<T> {
        let attribute = body.get_attribute(name)?;
        let value = read(&attribute.value);
        if value.is_none() {
            self.add_mistake_in(attribute, &format!("`{name}` wants {wanted}"));
        }
        value
    }

    /// Decodes a string.
    pub fn read_text(&mut self, body: &Body, name: &str) -> Option<String> {
        self.read_value(body, name, "a text in quotes", string_value)
    }

    /// Decodes an integer.
    pub fn read_number(&mut self, body: &Body, name: &str) -> Option<u32> {
        self.read_value(body, name, "a whole number of 0 or more", |expression| {
            u32::try_from(expression.as_number()?.as_u64()?).ok()
        })
    }

    /// Decodes an integer or a percentage. The bool is true for a percentage.
    pub fn read_number_or_share(&mut self, body: &Body, name: &str) -> Option<(u32, bool)> {
        let wanted = "a whole number of 0 or more, or a share such as \"25%\"";
        self.read_value(body, name, wanted, |expression| {
            if let Some(text) = expression.as_str() {
                let share: u32 = text.strip_suffix('%')?.parse().ok()?;
                return (share <= 100).then_some((share, true));
            }
            let count = u32::try_from(expression.as_number()?.as_u64()?).ok()?;
            Some((count, false))
        })
    }

    /// Decodes a duration.
    pub fn read_duration(&mut self, body: &Body, name: &str) -> Option<SignedDuration> {
        let wanted = "a duration such as \"90s\" or \"1h30m\"";
        self.read_value(body, name, wanted, |expression| {
            let duration: SignedDuration = string_value(expression)?.parse().ok()?;
            (!duration.is_negative()).then_some(duration)
        })
    }

    /// Decodes a time of day. Returns its first occurrence from `start` on.
    pub fn read_time_of_day(
        &mut self,
        body: &Body,
        name: &str,
        start: Timestamp,
    ) -> Option<Timestamp> {
        let wanted = "a time of day such as \"08:30\"";
        self.read_value(body, name, wanted, |expression| {
            time_of_day(&string_value(expression)?, start)
        })
    }

    /// Decodes a time with date.
    pub fn read_timestamp(&mut self, body: &Body, name: &str) -> Option<Timestamp> {
        let wanted = "a moment such as \"2026-03-03T00:00:00Z\"";
        self.read_value(body, name, wanted, |expression| string_value(expression)?.parse().ok())
    }

    /// Decodes a map of strings.
    pub fn read_labels(&mut self, body: &Body, name: &str) -> Option<Labels> {
        let wanted = "an object of texts such as { team = \"media\" }";
        self.read_value(body, name, wanted, |expression| {
            object_entries(expression)?
                .into_iter()
                .map(|(key, value)| Some((key, string_value(value)?)))
                .collect()
        })
    }

    /// Decodes quantities by resource name.
    pub fn read_resources(&mut self, body: &Body, name: &str) -> Option<Resources> {
        let wanted = "quantities such as { cpu = \"500m\", memory = \"1Gi\" }";
        self.read_value(body, name, wanted, |expression| {
            let mut resources = Resources::default();
            for (key, value) in object_entries(expression)? {
                resources.set_quantity(&key, &scalar_text(value)?).ok()?;
            }
            let valid = resources.iter().all(|(_, amount)| amount >= 0);
            valid.then_some(resources)
        })
    }

    /// Decodes a list of strings. A single string is a list of one.
    pub fn read_texts(&mut self, attribute: &Attribute) -> Option<Vec<String>> {
        let values = match attribute.value.as_array() {
            Some(array) => array.iter().map(scalar_text).collect(),
            None => scalar_text(&attribute.value).map(|value| vec![value]),
        };
        if values.is_none() {
            let text = format!("`{}` wants texts in quotes", attribute.key.as_str());
            self.add_mistake_in(attribute, &text);
        }
        values
    }
}

fn string_value(expression: &Expression) -> Option<String> {
    expression.as_str().map(str::to_owned)
}

/// A string or number, as a string.
fn scalar_text(expression: &Expression) -> Option<String> {
    string_value(expression).or_else(|| Some(expression.as_number()?.to_string()))
}

fn object_entries(expression: &Expression) -> Option<Vec<(String, &Expression)>> {
    expression
        .as_object()?
        .iter()
        .map(|(key, value)| {
            let key = match key {
                ObjectKey::Ident(ident) => ident.as_str().to_owned(),
                ObjectKey::Expression(expression) => string_value(expression)?,
            };
            Some((key, value.expr()))
        })
        .collect()
}

/// Returns the first occurrence of a time of day from `start` on, in UTC.
pub fn time_of_day(text: &str, start: Timestamp) -> Option<Timestamp> {
    let time: Time = text.parse().ok()?;
    let day = start.to_zoned(TimeZone::UTC);
    let at = day.datetime().date().to_datetime(time).to_zoned(TimeZone::UTC).ok()?.timestamp();
    if at < start { at.checked_add(24.hours()).ok() } else { Some(at) }
}
