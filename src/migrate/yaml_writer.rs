//! Writes readable YAML: documents with comments, and multi-line strings as blocks.

use serde_json::{Map, Value};

use crate::text::yaml::write_scalar;

/// Writes a document with the comments before it.
pub(crate) fn write_document(comments: &[String], object: &Map<String, Value>) -> String {
    let mut out = String::from("---\n");
    for line in comments {
        out.push_str(&format!("# {line}\n"));
    }
    write_fields(object, 0, &mut out);
    out
}

fn write_fields(object: &Map<String, Value>, indent: usize, out: &mut String) {
    for (key, value) in object {
        out.push_str(&" ".repeat(indent));
        out.push_str(&write_scalar(key));
        out.push(':');
        write_value(value, indent, out);
    }
}

/// Writes the value after a key or a dash.
fn write_value(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            out.push('\n');
            write_fields(object, indent + 2, out);
        }
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_string) => {
            let items = items.iter().filter_map(Value::as_str).map(write_scalar);
            out.push_str(&format!(
                " [{}]\n",
                items.map(flow_scalar).collect::<Vec<_>>().join(", ")
            ));
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            for item in items {
                out.push_str(&" ".repeat(indent + 2));
                out.push('-');
                match item {
                    Value::Object(object) if !object.is_empty() => {
                        // The first field is on the line of the dash.
                        let mut inner = String::new();
                        write_fields(object, indent + 4, &mut inner);
                        out.push(' ');
                        out.push_str(inner.trim_start());
                    }
                    item => write_value(item, indent + 2, out),
                }
            }
        }
        Value::Object(_) => out.push_str(" {}\n"),
        Value::Array(_) => out.push_str(" []\n"),
        Value::String(text) if is_literal(text) => write_literal(text, indent + 2, out),
        Value::String(text) => out.push_str(&format!(" {}\n", write_scalar(text))),
        other => out.push_str(&format!(" {other}\n")),
    }
}

/// Commas separate the elements of a list on one line.
fn flow_scalar(scalar: String) -> String {
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
    use proptest::prelude::{Strategy, any, prop_assert_eq, prop_oneof, proptest};
    use serde_json::{Map, Value, json};

    use super::write_document;

    fn value() -> impl Strategy<Value = Value> {
        let text = prop_oneof!["[ -~]{0,8}", any::<String>(), "([a-z :#,\t-]{0,6}\n){0,4}[a-z]?"];
        let leaf = prop_oneof![
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
        fn what_is_written_is_read_as_it_was(one in value(), other in value()) {
            let object = |own: &Value| Map::from_iter([("key".to_owned(), own.clone())]);
            let comment = ["a: b".to_owned()];
            let first = write_document(&comment, &object(&one));
            let text = first + &write_document(&[], &object(&other));
            let read: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
            prop_assert_eq!(read, [json!({ "key": one }), json!({ "key": other })], "{}", text);
        }
    }
}
