//! Reads and writes YAML. Strings are quoted only if needed.

use serde_json::{Map, Value};

/// Parses a single YAML document. `None` if it is invalid or not a mapping.
pub(crate) fn parse_mapping(text: &str) -> Option<Map<String, Value>> {
    match serde_saphyr::from_str::<Value>(text) {
        Ok(Value::Object(items)) => Some(items),
        _ => None,
    }
}

/// How lists of strings and strings of several lines are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Each item is on a line of its own, and each string on one line.
    Block,
    /// Lists of strings are on one line, and strings of several lines are literal blocks.
    Readable,
}

/// Writes a mapping in block style, with each line indented by this number of spaces.
pub(crate) fn block_mapping(items: &Map<String, Value>, indent: usize) -> String {
    let mut out = String::new();
    write_fields(items, indent, Style::Block, &mut out);
    out
}

/// Writes a readable document with the comments before it.
pub(crate) fn write_document(comments: &[String], object: &Map<String, Value>) -> String {
    let mut out = String::from("---\n");
    for line in comments {
        out.push_str(&format!("# {line}\n"));
    }
    write_fields(object, 0, Style::Readable, &mut out);
    out
}

/// Writes the keys and values of a mapping.
fn write_fields(items: &Map<String, Value>, indent: usize, style: Style, out: &mut String) {
    for (key, item) in items {
        out.push_str(&" ".repeat(indent));
        out.push_str(&write_scalar(key));
        out.push(':');
        write_value(item, indent, style, out);
    }
}

/// Writes the value after a key or after the dash of an item.
fn write_value(item: &Value, indent: usize, style: Style, out: &mut String) {
    let is_readable = style == Style::Readable;
    match item {
        Value::Object(items) if !items.is_empty() => {
            out.push('\n');
            write_fields(items, indent + 2, style, out);
        }
        Value::Array(items)
            if is_readable && !items.is_empty() && items.iter().all(Value::is_string) =>
        {
            let items = items.iter().filter_map(Value::as_str).map(flow_scalar);
            out.push_str(&format!(" [{}]\n", items.collect::<Vec<_>>().join(", ")));
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            for item in items {
                out.push_str(&" ".repeat(indent + 2));
                out.push('-');
                match item {
                    Value::Object(items) if !items.is_empty() => {
                        // The first key is on the line of the dash.
                        let mut inner = String::new();
                        write_fields(items, indent + 4, style, &mut inner);
                        out.push(' ');
                        out.push_str(inner.trim_start());
                    }
                    item => write_value(item, indent + 2, style, out),
                }
            }
        }
        Value::Object(_) => out.push_str(" {}\n"),
        Value::Array(_) => out.push_str(" []\n"),
        Value::String(text) if is_readable && is_literal(text) => {
            write_literal(text, indent + 2, out);
        }
        Value::String(text) => out.push_str(&format!(" {}\n", write_scalar(text))),
        other => out.push_str(&format!(" {other}\n")),
    }
}

/// Writes a string as a scalar that every reader parses as this string.
pub(crate) fn write_scalar(text: &str) -> String {
    /// Values that some YAML 1.1 or 1.2 readers parse as a bool or null.
    const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let first = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let word = WORDS.iter().any(|word| text.eq_ignore_ascii_case(word));
    if first
        && !word
        && !text.ends_with(':')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./+%<=,@:".contains(c))
    {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in Value::from(text).to_string().chars() {
        // JSON does not escape these characters. In YAML they are not printable, or are line
        // breaks.
        match u32::from(c) {
            code @ (0x7f..=0x9f | 0x2028 | 0x2029 | 0xfeff | 0xfffe | 0xffff) => {
                out.push_str(&format!("\\u{code:04x}"));
            }
            _ => out.push(c),
        }
    }
    out
}

/// Writes an element of a list on one line, whose elements are separated by commas.
fn flow_scalar(text: &str) -> String {
    let scalar = write_scalar(text);
    match scalar.contains(',') && !scalar.starts_with('"') {
        true => format!("\"{scalar}\""),
        false => scalar,
    }
}

/// Returns whether a string is written as a literal block.
fn is_literal(text: &str) -> bool {
    text.trim_end_matches('\n').contains('\n')
        && !text.starts_with([' ', '\t', '\n'])
        && !text.contains(|c: char| {
            (c.is_control() && c != '\n' && c != '\t')
                || matches!(u32::from(c), 0x2028 | 0x2029 | 0xfeff | 0xfffe | 0xffff)
        })
}

/// Writes a string of several lines after its key, with each line indented by this number of
/// spaces.
fn write_literal(text: &str, indent: usize, out: &mut String) {
    let ends = text.len() - text.trim_end_matches('\n').len();
    let keep = match ends {
        0 => "-",
        1 => "",
        _ => "+",
    };
    out.push_str(&format!(" |{keep}\n"));
    let body = text.strip_suffix('\n').unwrap_or(text);
    for line in body.split('\n') {
        if !line.is_empty() {
            out.push_str(&" ".repeat(indent));
        }
        out.push_str(line);
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};
    use serde_json::{Map, Value, json};

    use super::{block_mapping, parse_mapping, write_document, write_scalar};

    #[test]
    fn scalars_are_quoted_only_when_ambiguous() {
        for plain in ["a", "karpenter.sh/x", "https://a.b:1/c", "a=b,c=d", "memory.available<5%"] {
            assert_eq!(write_scalar(plain), plain);
        }
        for odd in ["", "1", "0x1", "1e3", "true", "No", "~", "a: b", "a:", "a #b", "-", "{a", "*a"]
        {
            assert_eq!(write_scalar(odd), format!("{odd:?}"));
        }
        assert_eq!(write_scalar("a\u{85}\u{2028}\n"), r#""a\u0085\u2028\n""#);
    }

    fn value() -> impl Strategy<Value = Value> {
        let text = prop_oneof![
            "[ -~]{0,8}",
            any::<String>(),
            "[a-z:# -]{0,6}",
            "([a-z :#,\t-]{0,6}\n){0,4}[a-z]?"
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            text.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            let items = proptest::collection::vec(inner.clone(), 0..5);
            let named = proptest::collection::vec((any::<String>(), inner), 0..5);
            prop_oneof![
                items.prop_map(Value::Array),
                named.prop_map(|named| Value::Object(named.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn block_mappings_round_trip(written in value(), indent in 0_usize..6) {
            let items: Map<String, Value> = Map::from_iter([("key".to_owned(), written)]);
            let text = block_mapping(&items, indent);
            prop_assert_eq!(parse_mapping(&text), Some(items), "{}", text);
        }

        #[test]
        fn documents_round_trip(one in value(), other in value()) {
            let object = |written: &Value| Map::from_iter([("key".to_owned(), written.clone())]);
            let comment = ["a: b".to_owned()];
            let first = write_document(&comment, &object(&one));
            let text = first + &write_document(&[], &object(&other));
            let read: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
            prop_assert_eq!(read, [json!({ "key": one }), json!({ "key": other })], "{}", text);
        }
    }
}
