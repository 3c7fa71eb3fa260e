//! Carries fields over by tables: from an object of Karpenter's to a body in HCL, and back.
//! It must not know what any of them means.

use serde_json::{Map, Value};

use crate::migrate::dropped::{DroppedFields, joined};
use crate::migrate::hcl::{HclBody, HclItem};

/// A field of Karpenter's with the argument or block that says the same.
pub(crate) struct FieldMapping {
    /// Path of the field within its object.
    pub(crate) field: &'static str,
    /// Name of the argument or block; `block.argument` where it stands in a block of its own.
    pub(crate) name: &'static str,
    /// How one becomes the other.
    pub(crate) shape: FieldKind,
}

/// How a field becomes an argument or block, and back.
pub(crate) enum FieldKind {
    /// A text.
    Text,
    /// A text that is not there where it is empty.
    Filled,
    /// A truth.
    Flag,
    /// An integer.
    Whole,
    /// A number that Karpenter writes as a text.
    Number,
    /// One of these words: Karpenter's, ours.
    Words(&'static [(&'static str, &'static str)]),
    /// A list of such words.
    SomeOf(&'static [(&'static str, &'static str)]),
    /// A duration in units of seconds and more, or never.
    Duration,
    /// A duration that Karpenter counts in seconds.
    Seconds,
    /// A list of texts.
    Texts,
    /// A number, or a percentage, that Karpenter writes as a text.
    Allowance,
    /// The size of a disk.
    Size,
    /// A map of texts.
    Map,
    /// A map of quantities.
    Quantities,
    /// An object that is a block.
    Block(&'static [FieldMapping]),
    /// A list of objects, each a block; the field that becomes its label.
    Blocks(Option<&'static str>, &'static [FieldMapping]),
    /// What is done by hand: it is known, and nothing else.
    ByHand,
}

/// A row of a table.
pub(crate) const fn row(field: &'static str, name: &'static str, shape: FieldKind) -> FieldMapping {
    FieldMapping { field, name, shape }
}

/// Takes the fields of a table out of an object, and gives what they say.
pub(crate) fn import(
    rows: &[FieldMapping],
    object: &mut Map<String, Value>,
    path: &str,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    for row in rows {
        if matches!(row.shape, FieldKind::ByHand) {
            continue;
        }
        let value = take(object, row.field);
        let empty = |own: &Value| matches!(row.shape, FieldKind::Filled) && *own == "";
        if let Some(value) = value.filter(|own| !empty(own)) {
            let at = joined(path, row.field);
            match row.name.split_once('.') {
                Some((block, name)) => {
                    let mut more = HclBody::default();
                    import_one(row, name, value, &at, &mut more, losses);
                    body.add_within(block, more);
                }
                None => import_one(row, row.name, value, &at, body, losses),
            }
        }
    }
    leftovers(rows, object, ("", path), losses);
}

fn import_one(
    row: &FieldMapping,
    name: &'static str,
    value: Value,
    at: &str,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    match (&row.shape, value) {
        (FieldKind::Block(rows), Value::Object(mut object)) => {
            let mut inner = HclBody::default();
            import(rows, &mut object, at, &mut inner, losses);
            if !inner.is_empty() {
                body.block(name, None, inner);
            }
        }
        (FieldKind::Blocks(label, rows), Value::Array(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                let at = format!("{at}[{index}]");
                let Value::Object(mut object) = item else {
                    losses.add(at, "it is no object");
                    continue;
                };
                let label = label.map(|field| {
                    let value = take(&mut object, field);
                    value.as_ref().and_then(text).unwrap_or_default()
                });
                let mut inner = HclBody::default();
                import(rows, &mut object, &at, &mut inner, losses);
                body.block(name, label.as_deref(), inner);
            }
        }
        (shape, value) => match ours(shape, &value) {
            Ok(value) => body.set(name, value),
            Err(why) => losses.add(at, why),
        },
    }
}

/// Reports what no row has taken.
fn leftovers(
    rows: &[FieldMapping],
    object: &Map<String, Value>,
    (within, path): (&str, &str),
    losses: &mut DroppedFields,
) {
    for (key, value) in object {
        let step = joined(within, key);
        let inside = |row: &FieldMapping| row.field.starts_with(&format!("{step}."));
        let own = |row: &FieldMapping| matches!(row.shape, FieldKind::ByHand) && row.field == step;
        match value {
            Value::Null => {}
            Value::Object(inner) if rows.iter().any(inside) => {
                leftovers(rows, inner, (&step, path), losses);
            }
            _ if rows.iter().any(own) => {}
            _ => losses.add(joined(path, &step), "an unknown field"),
        }
    }
}

/// Takes a field out by its path; what is null is not there.
pub(crate) fn take(object: &mut Map<String, Value>, field: &str) -> Option<Value> {
    match field.split_once('.') {
        Some((first, rest)) => match object.get_mut(first)? {
            Value::Object(inner) => take(inner, rest),
            _ => None,
        },
        None => object.shift_remove(field).filter(|value| !value.is_null()),
    }
}

/// Puts a value where its path says.
pub(crate) fn put(object: &mut Map<String, Value>, field: &str, value: Value) {
    let Some((first, rest)) = field.split_once('.') else {
        object.insert(field.to_owned(), value);
        return;
    };
    let inner = object
        .entry(first)
        .or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(inner) = inner {
        put(inner, rest, value);
    }
}

/// A text, or what may be written as one.
pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

type Words = &'static [(&'static str, &'static str)];

/// A value of Karpenter's in our words.
fn ours(shape: &FieldKind, value: &Value) -> Result<Value, String> {
    let texts = |what: &str| text(value).ok_or_else(|| format!("it is not {what}"));
    let word = |words: Words, value: &Value| {
        let text = text(value).ok_or("it is no text")?;
        let found = words.iter().find(|(theirs, _)| *theirs == text);
        let found = found.map(|(_, ours)| Value::from(*ours));
        found.ok_or_else(|| format!("there is nothing like {text:?} here"))
    };
    let whole = || {
        value
            .as_i64()
            .ok_or("it is no integer, and expressions are not carried".to_owned())
    };
    match shape {
        FieldKind::Text | FieldKind::Filled | FieldKind::Size => texts("a text").map(Value::from),
        FieldKind::Allowance => texts("a number").map(plain),
        FieldKind::Flag => value
            .as_bool()
            .map(Value::from)
            .ok_or("it is no bool".to_owned()),
        FieldKind::Whole => whole().map(Value::from),
        FieldKind::Number => {
            let number = texts("a number")?.parse().ok().map(number);
            number.ok_or_else(|| "it is no number".to_owned())
        }
        FieldKind::Words(words) => word(words, value),
        FieldKind::SomeOf(words) => {
            let items = value.as_array().ok_or("it is no list")?;
            let items: Result<Vec<Value>, String> =
                items.iter().map(|item| word(words, item)).collect();
            items.map(Value::Array)
        }
        FieldKind::Duration => match texts("a duration")?.as_str() {
            "Never" => Ok(Value::from("never")),
            text => Ok(Value::from(text)),
        },
        FieldKind::Seconds => whole().map(|seconds| Value::from(format!("{seconds}s"))),
        FieldKind::Texts => {
            let items = value.as_array().ok_or("it is no list")?;
            let items: Option<Vec<String>> = items.iter().map(text).collect();
            items
                .map(Value::from)
                .ok_or("it is no list of texts".to_owned())
        }
        FieldKind::Map | FieldKind::Quantities => {
            let items = value.as_object().ok_or("it is no map")?;
            let amounts = matches!(shape, FieldKind::Quantities);
            let each = |(key, item): (&String, &Value)| {
                let text = text(item)?;
                let item = if amounts {
                    plain(text)
                } else {
                    Value::from(text)
                };
                Some((key.clone(), item))
            };
            let items: Option<Map<String, Value>> = items.iter().map(each).collect();
            items
                .map(Value::Object)
                .ok_or("it is no map of texts".to_owned())
        }
        FieldKind::Block(_) | FieldKind::ByHand => Err("it is no object".to_owned()),
        FieldKind::Blocks(..) => Err("it is no list".to_owned()),
    }
}

/// A text as an integer where it is one.
fn plain(text: String) -> Value {
    let whole = text.parse::<i64>().ok();
    let whole = whole.filter(|own| own.to_string() == text);
    whole.map_or(Value::from(text), Value::from)
}

/// A number that is an integer where it can be one.
fn number(value: f64) -> Value {
    let text = value.to_string();
    text.parse::<i64>()
        .map_or_else(|_| Value::from(value), Value::from)
}

/// Takes the arguments and blocks of a table out of a body, and gives the object they make.
pub(crate) fn export(
    rows: &[FieldMapping],
    body: &mut HclBody,
    path: &str,
    object: &mut Map<String, Value>,
    losses: &mut DroppedFields,
) {
    for row in rows {
        match row.name.split_once('.') {
            Some((block, name)) => {
                if let Some(inner) = body.inner(block) {
                    export_one(row, name, inner, path, object, losses);
                }
            }
            None => export_one(row, row.name, body, path, object, losses),
        }
    }
}

fn export_one(
    row: &FieldMapping,
    name: &str,
    body: &mut HclBody,
    path: &str,
    object: &mut Map<String, Value>,
    losses: &mut DroppedFields,
) {
    let at = joined(path, row.name);
    match &row.shape {
        FieldKind::ByHand => {}
        FieldKind::Block(rows) => {
            if let Some(mut block) = body.take_blocks(name).pop() {
                let mut inner = Map::new();
                export(rows, &mut block.body, &at, &mut inner, losses);
                report_rest(&block.body, &at, losses);
                put(object, row.field, Value::Object(inner));
            }
        }
        FieldKind::Blocks(label, rows) => {
            let mut items = Vec::new();
            for (index, mut block) in body.take_blocks(name).into_iter().enumerate() {
                let mut inner = Map::new();
                if let (Some(field), Some(label)) = (label, block.label) {
                    put(&mut inner, field, Value::from(label));
                }
                let at = format!("{at}[{index}]");
                export(rows, &mut block.body, &at, &mut inner, losses);
                report_rest(&block.body, &at, losses);
                items.push(Value::Object(inner));
            }
            if !items.is_empty() {
                put(object, row.field, Value::Array(items));
            }
        }
        shape => {
            if let Some(value) = body.take_value(name) {
                match theirs(shape, value) {
                    Ok(value) => put(object, row.field, value),
                    Err(why) => losses.add(at, why),
                }
            }
        }
    }
}

/// Reports what no row has taken of a body.
pub(crate) fn report_rest(body: &HclBody, path: &str, losses: &mut DroppedFields) {
    for item in &body.items {
        match item {
            HclItem::Argument(name, _) => losses.add(joined(path, name), why_not(name)),
            HclItem::Block(block) if block.body.is_empty() => {}
            HclItem::Block(block) if block.label.is_none() && block.kind == "disruption" => {
                report_rest(&block.body, &joined(path, block.kind), losses);
            }
            HclItem::Block(block) => losses.add(joined(path, block.kind), why_not(block.kind)),
            HclItem::Comment(_) => {}
        }
    }
}

/// Why Karpenter cannot be told of an argument.
fn why_not(name: &str) -> &'static str {
    match name {
        "launch_timeout" | "registration_timeout" => "Karpenter's is fixed",
        "reserved_enis" => "in Karpenter a setting for all, RESERVED_ENIS",
        "vm_memory_overhead_percent" => {
            "in Karpenter a setting for all, VM_MEMORY_OVERHEAD_PERCENT"
        }
        "spot_to_spot_types" => "in Karpenter a feature gate for all, SpotToSpotConsolidation",
        "auto_repair" | "repair" => "in Karpenter a feature gate for all, NodeRepair",
        "during" => "Karpenter's buffers are kept always",
        "bootstrap" => "Karpenter's nodes join clusters of EKS, or by user data alone",
        _ => "Karpenter has no such setting",
    }
}

/// A value of ours in Karpenter's words.
fn theirs(shape: &FieldKind, value: Value) -> Result<Value, String> {
    let word = |words: Words, value: &Value| {
        let text = value.as_str().unwrap_or_default();
        let found = words.iter().find(|(_, ours)| *ours == text);
        let found = found.map(|(theirs, _)| Value::from(*theirs));
        found.ok_or_else(|| format!("Karpenter knows no {text:?}"))
    };
    let duration = || {
        let text = value.as_str().unwrap_or_default().to_owned();
        match text.ends_with("ms") {
            true => Err("Karpenter counts in seconds".to_owned()),
            false => Ok(text),
        }
    };
    match shape {
        // Karpenter knows no exponents.
        FieldKind::Number => value
            .as_f64()
            .map(|number| Value::from(number.to_string()))
            .ok_or_else(|| "it is no number".to_owned()),
        FieldKind::Size => size(&value),
        FieldKind::Allowance => Ok(text(&value).map_or(value, Value::from)),
        FieldKind::Words(words) => word(words, &value),
        FieldKind::SomeOf(words) => {
            let items = value.as_array().into_iter().flatten();
            let items: Result<Vec<Value>, String> = items.map(|item| word(words, item)).collect();
            items.map(Value::Array)
        }
        FieldKind::Duration => match duration()?.as_str() {
            "never" => Ok(Value::from("Never")),
            text => Ok(Value::from(text)),
        },
        FieldKind::Seconds => {
            let text = duration()?;
            let length = crate::model::duration::parse_go(&text);
            let length = length.ok_or("Karpenter knows no such duration")?;
            Ok(Value::from(length.as_secs()))
        }
        _ => Ok(value),
    }
}

/// A size in units that Karpenter takes. EC2 rounds up to GiB, whoever asks.
fn size(value: &Value) -> Result<Value, String> {
    const GIB: i64 = 1 << 30;
    const GIB_MAX: i64 = 59_000;
    let text = text(value).unwrap_or_default();
    let Ok(bytes) = text.parse::<i64>() else {
        return Ok(Value::from(text));
    };
    let gib = bytes / GIB + i64::from(bytes % GIB > 0);
    match gib <= GIB_MAX {
        true => Ok(Value::from(format!("{gib}Gi"))),
        false => Err(format!("Karpenter's disks have {GIB_MAX}Gi at most")),
    }
}
