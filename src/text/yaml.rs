//! Writes YAML in block style, with quotes only if needed.

use serde_json::{Map, Value};

/// Parses a single YAML document. `None` if it is invalid or not a mapping.
pub(crate) fn parse_mapping(text: &str) -> Option<Map<String, Value>> {
    match serde_saphyr::from_str::<Value>(text) {
        Ok(Value::Object(items)) => Some(items),
        _ => None,
    }
}

/// Writes a mapping in block style, with each line indented by this number of spaces.
pub(crate) fn block_mapping(items: &Map<String, Value>, indent: usize) -> String {
    let mut out = String::new();
    for (key, item) in items {
        out.push_str(&" ".repeat(indent));
        out.push_str(&write_scalar(key));
        out.push(':');
        write_value(item, indent, &mut out);
    }
    out
}

/// Writes the value after a key or after the dash of an item.
fn write_value(item: &Value, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    match item {
        Value::Object(items) if !items.is_empty() => {
            out.push('\n');
            out.push_str(&block_mapping(items, indent + 2));
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            for item in items {
                out.push_str(&pad);
                out.push_str("  -");
                match item {
                    // The first key is on the line of the dash.
                    Value::Object(items) if !items.is_empty() => {
                        out.push(' ');
                        out.push_str(block_mapping(items, indent + 4).trim_start());
                    }
                    item => write_value(item, indent + 2, out),
                }
            }
        }
        Value::Object(_) => out.push_str(" {}\n"),
        Value::Array(_) => out.push_str(" []\n"),
        Value::String(text) => {
            out.push(' ');
            out.push_str(&write_scalar(text));
            out.push('\n');
        }
        other => {
            out.push(' ');
            out.push_str(&other.to_string());
            out.push('\n');
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};
    use serde_json::{Map, Value};

    use super::{block_mapping, parse_mapping, write_scalar};

    #[test]
    fn quotes_are_there_where_a_reader_would_see_more_than_text() {
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
        let text = prop_oneof!["[ -~]{0,8}", any::<String>(), "[a-z:# -]{0,6}"];
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
        fn what_is_written_is_read_as_it_was(own in value(), indent in 0_usize..6) {
            let items: Map<String, Value> = Map::from_iter([("key".to_owned(), own)]);
            let text = block_mapping(&items, indent);
            prop_assert_eq!(parse_mapping(&text), Some(items), "{}", text);
        }
    }
}
