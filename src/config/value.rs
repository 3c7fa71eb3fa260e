//! Values of expressions: type names, conversions, sizes.

use hcl::{Number, Value};

/// The type of a value, with an article.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// The indefinite article of a name.
pub(super) fn article(name: &str) -> &'static str {
    if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

/// Maximum number of characters of a string that a message shows.
pub(super) const QUOTED_MAX: usize = 60;

/// The value as a message shows it: strings are quoted and shortened, and only the sizes of lists
/// and maps are shown.
pub(super) fn quote_value(value: &Value) -> String {
    match value {
        Value::String(text) if text.chars().count() > QUOTED_MAX => {
            let start: String = text.chars().take(QUOTED_MAX).collect();
            format!("{start:?}…")
        }
        Value::String(text) => format!("{text:?}"),
        Value::Array(items) if items.is_empty() => "an empty list".to_owned(),
        Value::Array(items) if items.len() == 1 => "a list of 1 element".to_owned(),
        Value::Array(items) => format!("a list of {} elements", items.len()),
        Value::Object(items) if items.is_empty() => "an empty map".to_owned(),
        Value::Object(items) if items.len() == 1 => "a map of 1 element".to_owned(),
        Value::Object(items) => format!("a map of {} elements", items.len()),
        other => to_text(other).unwrap_or_else(|| "null".to_owned()),
    }
}

/// Converts a string, number or bool to a string.
pub(super) fn to_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(number_text(number)),
        _ => None,
    }
}

/// Converts a number, or a string that contains one, to a number.
pub(super) fn to_number(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => Some(*number),
        Value::String(text) => parse_number(text),
        _ => None,
    }
}

/// Converts a bool, `"true"` or `"false"` to a bool.
pub(super) fn to_bool(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// The number as a string, without an empty fraction or exponent.
pub(super) fn number_text(number: &Number) -> String {
    if let Some(integer) = number.as_u64() {
        return integer.to_string();
    }
    match number.as_i64() {
        Some(integer) => integer.to_string(),
        None => number.as_f64().unwrap_or_default().to_string(),
    }
}

/// Parses a decimal number.
pub(super) fn parse_number(text: &str) -> Option<Number> {
    if text.is_empty()
        || !text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E'))
    {
        return None;
    }
    let integer = text.parse::<u64>().ok().map(Number::from);
    let integer = integer.or_else(|| text.parse::<i64>().ok().map(Number::from));
    integer.or_else(|| Number::from_f64(text.parse().ok()?))
}

/// The cost of copying a value: one for each part, and one for every 64 bytes of a string.
pub(super) fn copy_cost(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        Value::String(text) => 1 + text_size(text),
        Value::Array(items) => items.iter().map(copy_cost).sum::<u64>() + 1,
        Value::Object(items) => {
            let sizes = items.iter().map(|(key, item)| 1 + text_size(key) + copy_cost(item));
            sizes.sum::<u64>() + 1
        }
    }
}

/// The cost of copying the bytes of a string.
pub(super) fn text_size(text: &str) -> u64 {
    text.len() as u64 / 64
}

/// The nesting depth of lists and maps.
pub(super) fn nesting_depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(nesting_depth).max().unwrap_or(0) + 1,
        Value::Object(items) => items.values().map(nesting_depth).max().unwrap_or(0) + 1,
        _ => 0,
    }
}

/// The elements of a list or map with their keys, maps in the order of their keys.
pub(super) fn elements(value: &Value) -> Option<Vec<(Value, &Value)>> {
    match value {
        Value::Array(items) => {
            let keys = (0..items.len()).map(Value::from);
            Some(keys.zip(items).collect())
        }
        Value::Object(items) => {
            let mut sorted: Vec<(&String, &Value)> = items.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            let texts = sorted.into_iter();
            Some(texts.map(|(key, item)| (Value::from(key.as_str()), item)).collect())
        }
        _ => None,
    }
}

/// A hint that names the name most similar to `wanted`, if any is similar enough.
pub(super) fn did_you_mean<'a>(
    wanted: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    nearest_name(wanted, names).map(|near| format!("did you mean {near:?}?"))
}

/// A hint that names the name most similar to `wanted`, or else all names.
pub(super) fn expected_names(wanted: &str, names: &[&str]) -> String {
    let near = did_you_mean(wanted, names.iter().copied());
    near.or_else(|| listed_names(names)).unwrap_or_default()
}

/// A hint that lists names, if there are any.
pub(super) fn listed_names(names: &[&str]) -> Option<String> {
    (!names.is_empty()).then(|| format!("expected one of: {}", names.join(", ")))
}

/// The name most similar to `wanted`, if any is similar enough.
pub(crate) fn nearest_name<'a>(
    wanted: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    const LIKE_MIN: f64 = 0.8;
    // The comparison takes time proportional to the product of the lengths.
    const LENGTH_MAX: usize = 64;
    if wanted.len() > LENGTH_MAX {
        return None;
    }
    let folded = wanted.to_lowercase().replace('-', "_");
    names
        .into_iter()
        .filter(|name| name.len() <= LENGTH_MAX && *name != wanted)
        .map(|name| {
            let candidate = name.to_lowercase().replace('-', "_");
            (strsim::jaro_winkler(&folded, &candidate), name)
        })
        .filter(|(like, _)| *like >= LIKE_MIN)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, name)| name)
}
