//! Source files, with lines and columns of spans.

use crate::config::diagnostic::{Position, SourceRange};

/// A configuration file with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Name, for messages. It ends in `.json` if the file has the JSON syntax of HCL.
    pub name: String,
    /// Content.
    pub text: String,
}

impl SourceFile {
    /// A file of this name and content.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }
}

/// A part of one of the files, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    /// The file, by its index in the list.
    pub(super) file: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Span {
    pub(super) fn new(file: usize, start: usize, end: usize) -> Self {
        Self { file, start, end }
    }

    /// Returns the span from the start of this span to the end of `other` in the same file.
    pub(super) fn up_to(self, other: Self) -> Self {
        Self { end: other.end.max(self.end), ..self }
    }
}

/// The byte order mark that some editors write at the start of a file.
const MARK: &str = "\u{feff}";

/// A file without its byte order mark, with the offsets of its lines.
#[derive(Debug)]
struct Indexed {
    name: String,
    text: String,
    /// Bytes removed from the start.
    mark: usize,
    lines: Vec<usize>,
}

/// All files of a configuration.
#[derive(Debug, Default)]
pub(super) struct ConfigFiles {
    files: Vec<Indexed>,
}

impl ConfigFiles {
    /// Adds a file and returns its index.
    pub(super) fn add(&mut self, file: &SourceFile) -> usize {
        let text = file.text.strip_prefix(MARK).unwrap_or(&file.text);
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        self.files.push(Indexed {
            name: file.name.clone(),
            mark: file.text.len() - text.len(),
            lines: std::iter::once(0).chain(breaks.map(|(index, _)| index + 1)).collect(),
            text: text.to_owned(),
        });
        self.files.len() - 1
    }

    /// Name of a file.
    pub(super) fn name(&self, file: usize) -> &str {
        self.files.get(file).map_or("", |file| &file.name)
    }

    /// Text of a file, without a byte order mark.
    pub(super) fn text(&self, file: usize) -> &str {
        self.files.get(file).map_or("", |file| &file.text)
    }

    /// The span as a range to show, with a label.
    pub(super) fn range(&self, span: Span, label: &str) -> SourceRange {
        let Some(file) = self.files.get(span.file) else {
            return SourceRange::default();
        };
        let start = file.position(span.start);
        SourceRange {
            file: file.name.clone(),
            start,
            end: file.position(span.end.max(span.start)),
            label: label.to_owned(),
            context: None,
            code: Some(file.line(start.line).to_owned()),
        }
    }

    /// The line and column of a byte, both from zero.
    pub(super) fn line_of(&self, file: usize, byte: usize) -> usize {
        self.files.get(file).map_or(0, |file| file.position(byte).line)
    }
}

impl Indexed {
    fn position(&self, byte: usize) -> Position {
        let mut byte = byte.min(self.text.len());
        while !self.text.is_char_boundary(byte) {
            byte -= 1;
        }
        let line = self.lines.partition_point(|start| *start <= byte);
        let start = self.lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        Position {
            line: line.max(1),
            column: self.text[start..byte].chars().count() + 1,
            byte: byte + self.mark,
        }
    }

    /// The text of a line, without its end.
    fn line(&self, line: usize) -> &str {
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        let end = self.lines.get(line).map_or(self.text.len(), |next| next - 1);
        self.text[start..end.max(start)].trim_end_matches('\r')
    }
}

#[cfg(test)]
mod tests {
    use super::{ConfigFiles, SourceFile, Span};

    #[test]
    fn lines_and_columns_are_counted_in_characters() {
        let mut sources = ConfigFiles::default();
        let file = sources.add(&SourceFile::new("a.hcl", "\u{feff}ä = 1\r\nbö = 2"));
        let range = sources.range(Span::new(file, 8, 11), "");
        assert_eq!((range.start.line, range.start.column), (2, 1));
        assert_eq!((range.end.line, range.end.column), (2, 3));
        assert_eq!(range.start.byte..range.end.byte, 11..14);
        assert_eq!(sources.range(Span::new(file, 0, 1), "").code.as_deref(), Some("ä = 1"));
        assert_eq!(sources.range(Span::new(file, 99, 99), "").start.line, 2);
    }
}
