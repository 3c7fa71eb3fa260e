//! Parses YAML for `yamldecode`. The crate granit-parser reads the syntax, and this module converts
//! the values. It rejects anchors, tags and multiple documents.

use granit_parser::{Event, Parser, ScalarStyle, StrInput, StructureStyle, options};
use hcl::Value;

use crate::config::value::{parse_number, to_text};

/// A parse error.
#[derive(Debug)]
pub(super) struct Fault {
    /// Line number, from one.
    pub(super) line: usize,
    pub(super) text: String,
}

/// Maximum nesting of collections.
const DEPTH_MAX: usize = 64;

type YamlResult<T> = Result<T, Fault>;

/// Parses a document. An empty document is null.
pub(super) fn parse(text: &str) -> YamlResult<Value> {
    let options = options! {
        disallow_directives: true,
        emit_comments: false,
        emit_unresolved_aliases: true,
    };
    let mut reader =
        YamlReader { events: Parser::new_from_str_with_options(text, options), line: 1 };
    let mut document = None;
    loop {
        match reader.next_event()? {
            Event::StreamStart | Event::DocumentEnd => {}
            Event::StreamEnd => return Ok(document.unwrap_or(Value::Null)),
            Event::DocumentStart(..) if document.is_some() => {
                return reader.error("multiple documents are not supported");
            }
            Event::DocumentStart(..) => {
                let first = reader.next_event()?;
                document = Some(reader.read_value(first, 0)?);
            }
            _ => return reader.error("a document is expected"),
        }
    }
}

/// Builds values from the events of the parser.
struct YamlReader<'a> {
    events: Parser<'a, StrInput<'a>>,
    /// Where the last event starts.
    line: usize,
}

impl<'a> YamlReader<'a> {
    /// An error at the last event.
    fn error<T>(&self, text: impl Into<String>) -> YamlResult<T> {
        let (line, text) = (self.line, text.into());
        Err(Fault { line, text })
    }

    /// Returns the next event, and keeps its line.
    fn next_event(&mut self) -> YamlResult<Event<'a>> {
        match self.events.next() {
            Some(Ok((event, span))) => {
                self.line = span.start.line();
                Ok(event)
            }
            Some(Err(error)) => Err(Fault { line: error.marker().line(), text: error.info() }),
            None => self.error("the document ends too early"),
        }
    }

    /// Reads the value that starts with an event, within this number of collections.
    fn read_value(&mut self, first: Event<'a>, depth: usize) -> YamlResult<Value> {
        // Anchors are numbered from 1.
        match first {
            Event::Scalar(text, ScalarStyle::Plain, 0, None) => Ok(plain_scalar(&text)),
            Event::Scalar(text, _, 0, None) => Ok(Value::String(text.into_owned())),
            Event::SequenceStart(..) | Event::MappingStart(..) if depth >= DEPTH_MAX => {
                self.error(format!("more than {DEPTH_MAX} nested levels"))
            }
            Event::SequenceStart(_, 0, None) => self.read_sequence(depth + 1),
            Event::MappingStart(style, 0, None) => self.read_mapping(style, depth + 1),
            _ => self.error("anchors, aliases and tags are not supported"),
        }
    }

    /// Reads the items of a list up to its end.
    fn read_sequence(&mut self, depth: usize) -> YamlResult<Value> {
        let mut items = Vec::new();
        loop {
            match self.next_event()? {
                Event::SequenceEnd => return Ok(Value::Array(items)),
                first => items.push(self.read_value(first, depth)?),
            }
        }
    }

    /// Reads the keys and values of a map up to its end.
    fn read_mapping(&mut self, style: StructureStyle, depth: usize) -> YamlResult<Value> {
        let mut items = hcl::Map::new();
        loop {
            let key = match self.next_event()? {
                Event::MappingEnd => return Ok(Value::Object(items)),
                first => self.read_value(first, depth)?,
            };
            let line = self.line;
            let key = match key {
                Value::Array(_) | Value::Object(_) => {
                    return self.error("a list or a map cannot be a key");
                }
                key => to_text(&key).unwrap_or_default(),
            };
            let first = self.next_event()?;
            let value = self.read_value(first, depth)?;
            let repeated = items.insert(key.clone(), value).is_some();
            // In flow style, which includes JSON, the last value of a repeated key is used, as in
            // `jsondecode`.
            if repeated && style == StructureStyle::Block {
                let text = format!("the key {key:?} is set twice");
                return Err(Fault { line, text });
            }
        }
    }
}

/// The value of a scalar without quotes.
fn plain_scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => parse_number(text)
            .filter(|_| text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.'))
            .map_or_else(|| Value::String(text.to_owned()), Value::Number),
    }
}
