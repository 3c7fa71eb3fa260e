//! Parses a subset of YAML: block and flow collections, plain, quoted and block scalars. It rejects
//! anchors, tags and multiple documents.

use hcl::Value;

use crate::config::value::parse_number;

/// A parse error.
#[derive(Debug)]
pub(super) struct Fault {
    /// Line, from one.
    pub(super) line: usize,
    pub(super) text: String,
}

/// Maximum nesting of collections.
const DEPTH_MAX: usize = 64;

/// A line with content: its number, its indentation and its content.
#[derive(Clone, Debug)]
struct YamlLine<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

struct Parser<'a> {
    raw: Vec<&'a str>,
    lines: Vec<YamlLine<'a>>,
    at: usize,
}

type YamlResult<T> = Result<T, Fault>;

/// Parses a document.
pub(super) fn parse(text: &str) -> YamlResult<Value> {
    let raw: Vec<&str> = text.lines().collect();
    let mut lines = Vec::new();
    for (index, line) in raw.iter().enumerate() {
        let content = line.trim_start_matches(' ');
        let blank = content.trim().is_empty() || content.starts_with('#');
        let start = *line == "---" && lines.is_empty();
        if !blank && !start {
            lines.push(YamlLine {
                number: index + 1,
                indent: line.len() - content.len(),
                text: content.trim_end(),
            });
        }
    }
    let mut parser = Parser { raw, lines, at: 0 };
    let Some(first) = parser.lines.first() else {
        return Ok(Value::Null);
    };
    let indent = first.indent;
    let value = parser.parse_block(indent, 0)?;
    match parser.lines.get(parser.at) {
        Some(line) => yaml_error(line.number, "it does not belong to the preceding value"),
        None => Ok(value),
    }
}

fn yaml_error<T>(line: usize, text: impl Into<String>) -> YamlResult<T> {
    let text = text.into();
    Err(Fault { line, text })
}

impl<'a> Parser<'a> {
    fn current_line(&self) -> Option<YamlLine<'a>> {
        self.lines.get(self.at).cloned()
    }

    /// Parses the value whose lines start at `indent`.
    fn parse_block(&mut self, indent: usize, depth: usize) -> YamlResult<Value> {
        let Some(line) = self.current_line() else {
            return Ok(Value::Null);
        };
        if depth > DEPTH_MAX {
            return yaml_error(line.number, format!("more than {DEPTH_MAX} nested levels"));
        }
        if line.text.starts_with('\t') {
            return yaml_error(line.number, "tabs are not allowed as indentation");
        }
        if is_item(line.text) {
            return self.parse_sequence(indent, depth);
        }
        if split_key(line.text).is_some() {
            return self.parse_mapping(indent, depth);
        }
        self.at += 1;
        self.parse_scalar(&line, line.text, indent)
    }

    fn parse_sequence(&mut self, indent: usize, depth: usize) -> YamlResult<Value> {
        let mut items = Vec::new();
        while let Some(line) = self.current_line().filter(|line| line.indent == indent) {
            let Some(rest) = line.text.strip_prefix('-').filter(|_| is_item(line.text)) else {
                break;
            };
            let inner = rest.trim_start_matches(' ');
            let indent_inner = indent + line.text.len() - inner.len();
            if is_comment(inner) {
                self.at += 1;
                items.push(self.parse_below(indent + 1, depth)?);
            } else if is_item(inner) || split_key(inner).is_some() {
                // The rest of the line is the first line of a nested collection.
                self.lines[self.at] = YamlLine { indent: indent_inner, text: inner, ..line };
                items.push(self.parse_block(indent_inner, depth + 1)?);
            } else {
                self.at += 1;
                items.push(self.parse_scalar(&line, inner, indent + 1)?);
            }
        }
        Ok(Value::Array(items))
    }

    fn parse_mapping(&mut self, indent: usize, depth: usize) -> YamlResult<Value> {
        let mut items = hcl::Map::new();
        while let Some(line) = self.current_line().filter(|line| line.indent == indent) {
            let Some((key, rest)) = split_key(line.text) else {
                return yaml_error(line.number, "a key and a colon are expected");
            };
            let key = match plain_scalar(key.trim(), line.number)? {
                Value::String(text) => text,
                other => crate::config::value::to_text(&other).unwrap_or_default(),
            };
            let rest = rest.trim_start();
            self.at += 1;
            let value = if is_comment(rest) {
                // A list may have the same indentation as its key.
                let list =
                    self.current_line().filter(|next| next.indent == indent && is_item(next.text));
                match list {
                    Some(_) => self.parse_block(indent, depth + 1)?,
                    None => self.parse_below(indent + 1, depth)?,
                }
            } else {
                self.parse_scalar(&line, rest, indent + 1)?
            };
            if items.insert(key.clone(), value).is_some() {
                return yaml_error(line.number, format!("the key {key:?} is set twice"));
            }
        }
        if let Some(line) = self.current_line().filter(|line| line.indent > indent) {
            return yaml_error(line.number, "its indentation matches no preceding line");
        }
        Ok(Value::Object(items))
    }

    /// Parses the value on the following lines, if they are indented at least this far.
    fn parse_below(&mut self, indent: usize, depth: usize) -> YamlResult<Value> {
        match self.current_line() {
            Some(next) if next.indent >= indent => self.parse_block(next.indent, depth + 1),
            _ => Ok(Value::Null),
        }
    }

    /// A scalar or flow collection that starts on this line.
    fn parse_scalar(
        &mut self,
        line: &YamlLine<'_>,
        text: &str,
        indent: usize,
    ) -> YamlResult<Value> {
        match text.as_bytes().first() {
            Some(b'|' | b'>') => self.block_scalar(line, text, indent),
            Some(b'&' | b'*' | b'!') => {
                yaml_error(line.number, "anchors, aliases and tags are not supported")
            }
            Some(b'[' | b'{') => {
                let mut flow = without_comment(text).to_owned();
                // A flow collection may span several lines.
                while open_brackets(&flow) > 0 {
                    let Some(next) = self.current_line() else {
                        return yaml_error(line.number, "the collection is not closed");
                    };
                    flow.push(' ');
                    flow.push_str(without_comment(next.text));
                    self.at += 1;
                }
                let mut rest = flow.as_str();
                let value = flow_value(&mut rest, line.number, 0)?;
                match rest.trim() {
                    "" => Ok(value),
                    _ => yaml_error(line.number, "text follows the collection"),
                }
            }
            _ => plain_scalar(without_comment(text).trim(), line.number),
        }
    }

    fn block_scalar(
        &mut self,
        line: &YamlLine<'_>,
        text: &str,
        indent: usize,
    ) -> YamlResult<Value> {
        let folded = text.starts_with('>');
        let (strip, keep) = (text.contains('-'), text.contains('+'));
        let mut content: Vec<&str> = Vec::new();
        let mut first_width = None;
        for raw in self.raw.iter().skip(line.number) {
            let width = raw.len() - raw.trim_start_matches(' ').len();
            if raw.trim().is_empty() {
                content.push("");
                continue;
            }
            let margin = *first_width.get_or_insert(width);
            if width < margin.max(indent) {
                break;
            }
            content.push(&raw[margin..]);
        }
        let last = line.number + content.len();
        while self.current_line().is_some_and(|next| next.number <= last) {
            self.at += 1;
        }
        let ends = content.iter().rev().take_while(|line| line.is_empty()).count();
        let (body, tail) = content.split_at(content.len() - ends);
        let mut out = if folded {
            let paragraphs = body.split(|line| line.is_empty());
            paragraphs.map(|lines| lines.join(" ")).collect::<Vec<_>>().join("\n")
        } else {
            body.join("\n")
        };
        if !strip && !body.is_empty() {
            out.push('\n');
        }
        if keep {
            out.push_str(&"\n".repeat(tail.len()));
        }
        Ok(Value::String(out))
    }
}

fn is_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

fn is_comment(text: &str) -> bool {
    text.trim().is_empty() || text.starts_with('#')
}

/// A key and the text after its colon. `None` if the line has no key.
fn split_key(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    for (index, c) in text.char_indices() {
        match (quote, c) {
            (None, '"' | '\'') if index == 0 => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, '#') if text[..index].ends_with(' ') => return None,
            (None, '[' | '{') if index == 0 => return None,
            (None, ':') => {
                let rest = &text[index + 1..];
                if rest.is_empty() || rest.starts_with(' ') {
                    return Some((&text[..index], rest));
                }
            }
            _ => {}
        }
    }
    None
}

/// The text up to a comment outside quotes.
fn without_comment(text: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (index, c) in text.char_indices() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, '#') if before == ' ' => return text[..index].trim_end(),
            _ => {}
        }
        before = c;
    }
    text
}

fn open_brackets(text: &str) -> i64 {
    let mut quote = None;
    let mut open = 0;
    for c in text.chars() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(opening), c) if c == opening => quote = None,
            (None, '[' | '{') => open += 1,
            (None, ']' | '}') => open -= 1,
            _ => {}
        }
    }
    open
}

fn flow_value(rest: &mut &str, line: usize, depth: usize) -> YamlResult<Value> {
    if depth > DEPTH_MAX {
        return yaml_error(line, format!("more than {DEPTH_MAX} nested levels"));
    }
    *rest = rest.trim_start();
    let list = rest.starts_with('[');
    if !list && !rest.starts_with('{') {
        return plain_scalar(flow_token(rest, line)?.trim(), line);
    }
    *rest = &rest[1..];
    let close = if list { ']' } else { '}' };
    let (mut items, mut members) = (Vec::new(), hcl::Map::new());
    loop {
        *rest = rest.trim_start().trim_start_matches(',').trim_start();
        if let Some(after) = rest.strip_prefix(close) {
            *rest = after;
            break;
        }
        if rest.is_empty() {
            return yaml_error(line, "the collection is not closed");
        }
        if list {
            items.push(flow_value(rest, line, depth + 1)?);
            continue;
        }
        let key = match plain_scalar(flow_token(rest, line)?.trim(), line)? {
            Value::String(text) => text,
            other => crate::config::value::to_text(&other).unwrap_or_default(),
        };
        let Some(after) = rest.trim_start().strip_prefix(':') else {
            return yaml_error(line, "a colon is expected after a key");
        };
        *rest = after;
        members.insert(key, flow_value(rest, line, depth + 1)?);
    }
    Ok(if list { Value::Array(items) } else { Value::Object(members) })
}

/// The next scalar within a flow collection.
fn flow_token<'a>(rest: &mut &'a str, line: usize) -> YamlResult<&'a str> {
    let whole = *rest;
    let quote = whole.chars().next().filter(|c| matches!(c, '"' | '\''));
    let end = match quote {
        Some(quote) => whole[1..].find(quote).map(|index| index + 2),
        None => {
            let colon = whole.find(": ").or_else(|| whole.find(':').filter(|_| false));
            let stop = whole.find([',', ']', '}']).unwrap_or(whole.len());
            Some(colon.map_or(stop, |colon| colon.min(stop)))
        }
    };
    match end {
        Some(0) => yaml_error(line, "a value is expected"),
        Some(end) => {
            *rest = &whole[end..];
            Ok(&whole[..end])
        }
        None => yaml_error(line, "the quote is not closed"),
    }
}

/// A plain or quoted scalar.
fn plain_scalar(text: &str, line: usize) -> YamlResult<Value> {
    if text.starts_with('"') {
        return match serde_json::from_str::<String>(text) {
            Ok(text) => Ok(Value::String(text)),
            Err(_) => yaml_error(line, "the quoted string is malformed"),
        };
    }
    if let Some(rest) = text.strip_prefix('\'') {
        return match rest.strip_suffix('\'') {
            Some(inner) => Ok(Value::String(inner.replace("''", "'"))),
            None => yaml_error(line, "the quote is not closed"),
        };
    }
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => parse_number(text)
            .filter(|_| text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.'))
            .map_or_else(|| Value::String(text.to_owned()), Value::Number),
    })
}
