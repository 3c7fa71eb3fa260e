//! Prints values in HCL: quotes, escapes and heredocs.

use serde_json::{Map, Value};

/// Keywords that cannot be unquoted keys of a map.
const WORDS: [&str; 6] = ["for", "if", "in", "null", "true", "false"];

/// Prints a key of a map, quoted if needed.
pub(crate) fn map_key(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        && !WORDS.contains(&text);
    if plain { text.to_owned() } else { quoted_string(text) }
}

/// Prints a value on one line.
pub(crate) fn list_or_map(value: &Value) -> String {
    match value {
        Value::String(text) => quoted_string(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(list_or_map).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(items) if items.is_empty() => "{}".to_owned(),
        Value::Object(items) => {
            format!("{{ {} }}", map_entries(items).join(", "))
        }
        other => other.to_string(),
    }
}

/// Prints each entry of a map.
pub(crate) fn map_entries(items: &Map<String, Value>) -> Vec<String> {
    let entries = items.iter();
    entries.map(|(name, item)| format!("{} = {}", map_key(name), list_or_map(item))).collect()
}

/// Prints a quoted string.
pub(crate) fn quoted_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in escape_template(text).chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Escapes template sequences in a string.
fn escape_template(text: &str) -> String {
    text.replace("${", "$${").replace("%{", "%%{")
}

/// Prints a quoted string, or a heredoc if it has several lines.
pub(crate) fn string_literal(text: &str, depth: usize) -> String {
    let lines = text.trim_end_matches('\n').contains('\n');
    if !lines || text.contains(|c: char| c.is_control() && c != '\n' && c != '\t') {
        return quoted_string(text);
    }
    let mark = heredoc_delimiter(text);
    // `<<-` removes the common indent of all lines, so one line must have no indent itself.
    let flush = text.lines().all(|line| line.is_empty() || line.starts_with(char::is_whitespace));
    let (dash, pad) = match flush {
        true => ("", String::new()),
        false => ("-", "  ".repeat(depth + 1)),
    };
    let mut body = String::new();
    for line in escape_template(text).lines() {
        if !line.is_empty() {
            body.push_str(&pad);
        }
        body.push_str(line);
        body.push('\n');
    }
    let end = match flush {
        true => String::new(),
        false => "  ".repeat(depth),
    };
    // A heredoc ends with a newline.
    match text.ends_with('\n') {
        true => format!("<<{dash}{mark}\n{body}{end}{mark}"),
        false => format!("trimsuffix(<<{dash}{mark}\n{body}{end}{mark}\n{end}, \"\\n\")"),
    }
}

/// Returns a delimiter that does not occur in the text.
fn heredoc_delimiter(text: &str) -> String {
    let numbered = (2_u32..).map(|number| format!("EOT{number}"));
    let mut all = std::iter::once("EOT".to_owned()).chain(numbered);
    let free = all.find(|mark| !text.contains(mark.as_str()));
    free.unwrap_or_else(|| "EOT".to_owned())
}
