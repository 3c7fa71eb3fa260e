//! YAML as people write it: block style, quotes only where they are needed.
//! It must not know what a document is for.

use serde_json::{Map, Value};

/// The mapping of a text that is one YAML document; none where it is none, or another thing.
pub(crate) fn mapping(text: &str) -> Option<Map<String, Value>> {
    match serde_saphyr::from_str::<Value>(text) {
        Ok(Value::Object(items)) => Some(items),
        _ => None,
    }
}

/// A mapping in block style, each line indented by this many blanks.
pub(crate) fn block(items: &Map<String, Value>, indent: usize) -> String {
    let mut out = String::new();
    for (key, item) in items {
        out.push_str(&" ".repeat(indent));
        out.push_str(&scalar(key));
        out.push(':');
        after(item, indent, &mut out);
    }
    out
}

/// What follows a key or the dash of an item.
fn after(item: &Value, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    match item {
        Value::Object(items) if !items.is_empty() => {
            out.push('\n');
            out.push_str(&block(items, indent + 2));
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            for item in items {
                out.push_str(&pad);
                out.push_str("  -");
                match item {
                    // The first key stands beside the dash.
                    Value::Object(items) if !items.is_empty() => {
                        out.push(' ');
                        out.push_str(block(items, indent + 4).trim_start());
                    }
                    item => after(item, indent + 2, out),
                }
            }
        }
        Value::Object(_) => out.push_str(" {}\n"),
        Value::Array(_) => out.push_str(" []\n"),
        Value::String(text) => {
            out.push(' ');
            out.push_str(&scalar(text));
            out.push('\n');
        }
        other => {
            out.push(' ');
            out.push_str(&other.to_string());
            out.push('\n');
        }
    }
}

/// A text as a scalar that nobody takes for anything but this text.
pub(crate) fn scalar(text: &str) -> String {
    /// What some reader of YAML 1.1 or 1.2 takes for a boolean or nothing.
    const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let inside = |c: char| c.is_ascii_alphanumeric() || "-_./+%<=,@:".contains(c);
    let first = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let word = WORDS.iter().any(|word| text.eq_ignore_ascii_case(word));
    if first && !word && !text.ends_with(':') && text.chars().all(inside) {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in Value::from(text).to_string().chars() {
        // JSON leaves these as they are; to YAML they are not printable, or ends of lines.
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

    use super::{block, mapping, scalar};

    #[test]
    fn quotes_are_there_where_a_reader_would_see_more_than_text() {
        for plain in [
            "a",
            "karpenter.sh/x",
            "https://a.b:1/c",
            "a=b,c=d",
            "memory.available<5%",
        ] {
            assert_eq!(scalar(plain), plain);
        }
        for odd in [
            "", "1", "0x1", "1e3", "true", "No", "~", "a: b", "a:", "a #b", "-", "{a", "*a",
        ] {
            assert_eq!(scalar(odd), format!("{odd:?}"));
        }
        assert_eq!(scalar("a\u{85}\u{2028}\n"), r#""a\u0085\u2028\n""#);
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
            let text = block(&items, indent);
            prop_assert_eq!(mapping(&text), Some(items), "{}", text);
        }
    }
}
