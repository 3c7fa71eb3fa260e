//! Converts the fields of a Karpenter object to an HCL body and back, by means of field tables.

use serde_json::{Map, Value};

use crate::migrate::dropped::{DroppedFields, joined};
use crate::migrate::hcl::{HclBody, HclItem};

/// A Karpenter field with the corresponding argument or block.
pub(crate) struct FieldMapping {
    /// Path of the field within its object.
    pub(crate) field: &'static str,
    /// Name of the argument or block; `block.argument` if the argument is in a nested block.
    pub(crate) name: &'static str,
    /// How the value is converted.
    pub(crate) shape: FieldKind,
}

/// How a field is converted to an argument or block, and back.
pub(crate) enum FieldKind {
    /// A string.
    Text,
    /// A string that is omitted if it is empty.
    Filled,
    /// A bool.
    Flag,
    /// An integer.
    Whole,
    /// A number that Karpenter writes as a string.
    Number,
    /// A keyword: pairs of Karpenter's keyword and ours.
    Words(&'static [(&'static str, &'static str)]),
    /// A list of keywords.
    SomeOf(&'static [(&'static str, &'static str)]),
    /// A duration in whole seconds, or `never`.
    Duration,
    /// A duration that Karpenter writes as a number of seconds.
    Seconds,
    /// A list of strings.
    Texts,
    /// A number or percentage that Karpenter writes as a string.
    Allowance,
    /// The size of a volume.
    Size,
    /// A map of strings.
    Map,
    /// A map of quantities.
    Quantities,
    /// An object that becomes a block.
    Block(&'static [FieldMapping]),
    /// A list of objects that become blocks, with the field that becomes the label.
    Blocks(Option<&'static str>, &'static [FieldMapping]),
    /// A field that is converted by separate code.
    ByHand,
}

/// A row of a table.
pub(crate) const fn row(field: &'static str, name: &'static str, shape: FieldKind) -> FieldMapping {
    FieldMapping { field, name, shape }
}

/// Removes the fields of a table from an object and returns their arguments and blocks.
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
        let empty = |value: &Value| matches!(row.shape, FieldKind::Filled) && *value == "";
        if let Some(value) = value.filter(|value| !empty(value)) {
            let field_path = joined(path, row.field);
            match row.name.split_once('.') {
                Some((block, name)) => {
                    let mut more = HclBody::default();
                    import_one(row, name, value, &field_path, &mut more, losses);
                    body.add_within(block, more);
                }
                None => import_one(row, row.name, value, &field_path, body, losses),
            }
        }
    }
    leftovers(rows, object, ("", path), losses);
}

fn import_one(
    row: &FieldMapping,
    name: &'static str,
    value: Value,
    path: &str,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    match (&row.shape, value) {
        (FieldKind::Block(rows), Value::Object(mut object)) => {
            let mut inner = HclBody::default();
            import(rows, &mut object, path, &mut inner, losses);
            if !inner.is_empty() {
                body.block(name, None, inner);
            }
        }
        (FieldKind::Blocks(label, rows), Value::Array(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                let item_path = format!("{path}[{index}]");
                let Value::Object(mut object) = item else {
                    losses.add(item_path, "the value is not an object");
                    continue;
                };
                let label = label.map(|field| {
                    let value = take(&mut object, field);
                    value.as_ref().and_then(text).unwrap_or_default()
                });
                let mut inner = HclBody::default();
                import(rows, &mut object, &item_path, &mut inner, losses);
                body.block(name, label.as_deref(), inner);
            }
        }
        (shape, value) => match ours(shape, &value) {
            Ok(value) => body.set(name, value),
            Err(why) => losses.add(path, why),
        },
    }
}

/// Reports the fields that no row has converted.
fn leftovers(
    rows: &[FieldMapping],
    object: &Map<String, Value>,
    (within, path): (&str, &str),
    losses: &mut DroppedFields,
) {
    for (key, value) in object {
        let step = joined(within, key);
        match value {
            Value::Null => {}
            Value::Object(inner)
                if rows
                    .iter()
                    .any(|row| row.field.starts_with(&format!("{step}."))) =>
            {
                leftovers(rows, inner, (&step, path), losses);
            }
            _ if rows
                .iter()
                .any(|row| matches!(row.shape, FieldKind::ByHand) && row.field == step) => {}
            _ => losses.add(joined(path, &step), "unknown field"),
        }
    }
}

/// Removes a field by its path. A null value counts as absent.
pub(crate) fn take(object: &mut Map<String, Value>, field: &str) -> Option<Value> {
    match field.split_once('.') {
        Some((first, rest)) => match object.get_mut(first)? {
            Value::Object(inner) => take(inner, rest),
            _ => None,
        },
        None => object.shift_remove(field).filter(|value| !value.is_null()),
    }
}

/// Inserts a value at a path.
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

/// Returns a string, or a scalar as a string.
pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

type Words = &'static [(&'static str, &'static str)];

/// Converts a Karpenter value to a value of an argument.
fn ours(shape: &FieldKind, value: &Value) -> Result<Value, String> {
    let texts = |what: &str| text(value).ok_or_else(|| format!("the value is not {what}"));
    let word = |words: Words, value: &Value| {
        let text = text(value).ok_or("the value is not a string")?;
        let found = words.iter().find(|(theirs, _)| *theirs == text);
        let found = found.map(|(_, ours)| Value::from(*ours));
        found.ok_or_else(|| format!("Outrigger has no equivalent of {text:?}"))
    };
    let whole = || {
        value
            .as_i64()
            .ok_or("the value is not an integer; expressions are not supported".to_owned())
    };
    match shape {
        FieldKind::Text | FieldKind::Filled | FieldKind::Size => texts("a string").map(Value::from),
        FieldKind::Allowance => texts("a number").map(plain),
        FieldKind::Flag => value
            .as_bool()
            .map(Value::from)
            .ok_or("the value is not a bool".to_owned()),
        FieldKind::Whole => whole().map(Value::from),
        FieldKind::Number => {
            let number = texts("a number")?.parse().ok().map(number);
            number.ok_or_else(|| "the value is not a number".to_owned())
        }
        FieldKind::Words(words) => word(words, value),
        FieldKind::SomeOf(words) => {
            let items = value.as_array().ok_or("the value is not a list")?;
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
            let items = value.as_array().ok_or("the value is not a list")?;
            let items: Option<Vec<String>> = items.iter().map(text).collect();
            items
                .map(Value::from)
                .ok_or("the value is not a list of strings".to_owned())
        }
        FieldKind::Map | FieldKind::Quantities => {
            let items = value.as_object().ok_or("the value is not a map")?;
            let amounts = matches!(shape, FieldKind::Quantities);
            let items: Option<Map<String, Value>> = items
                .iter()
                .map(|(key, item)| {
                    let text = text(item)?;
                    let item = if amounts {
                        plain(text)
                    } else {
                        Value::from(text)
                    };
                    Some((key.clone(), item))
                })
                .collect();
            items
                .map(Value::Object)
                .ok_or("the value is not a map of strings".to_owned())
        }
        FieldKind::Block(_) | FieldKind::ByHand => Err("the value is not an object".to_owned()),
        FieldKind::Blocks(..) => Err("the value is not a list".to_owned()),
    }
}

/// Converts a string to an integer if it is one.
fn plain(text: String) -> Value {
    let whole = text.parse::<i64>().ok();
    let whole = whole.filter(|number| number.to_string() == text);
    whole.map_or(Value::from(text), Value::from)
}

/// Converts a float to an integer if it has no fraction.
fn number(value: f64) -> Value {
    let text = value.to_string();
    text.parse::<i64>()
        .map_or_else(|_| Value::from(value), Value::from)
}

/// Removes the arguments and blocks of a table from a body and returns the Karpenter object.
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
    let path = joined(path, row.name);
    match &row.shape {
        FieldKind::ByHand => {}
        FieldKind::Block(rows) => {
            if let Some(mut block) = body.take_blocks(name).pop() {
                let mut inner = Map::new();
                export(rows, &mut block.body, &path, &mut inner, losses);
                report_rest(&block.body, &path, losses);
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
                let item_path = format!("{path}[{index}]");
                export(rows, &mut block.body, &item_path, &mut inner, losses);
                report_rest(&block.body, &item_path, losses);
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
                    Err(why) => losses.add(path, why),
                }
            }
        }
    }
}

/// Reports the arguments and blocks that no row has converted.
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

/// Returns why an argument cannot be exported.
fn why_not(name: &str) -> &'static str {
    match name {
        "launch_timeout" | "registration_timeout" => "fixed in Karpenter",
        "reserved_enis" => "global setting RESERVED_ENIS in Karpenter",
        "vm_memory_overhead_percent" => "global setting VM_MEMORY_OVERHEAD_PERCENT in Karpenter",
        "spot_to_spot_min_types" => "global feature gate SpotToSpotConsolidation in Karpenter",
        "auto_repair" | "repair" => "global feature gate NodeRepair in Karpenter",
        "during" => "Karpenter buffers have no schedule",
        "bootstrap" => "Karpenter nodes join EKS clusters, or join through user data",
        _ => "Karpenter has no such setting",
    }
}

/// Converts a value of an argument to a Karpenter value.
fn theirs(shape: &FieldKind, value: Value) -> Result<Value, String> {
    let word = |words: Words, value: &Value| {
        let text = value.as_str().unwrap_or_default();
        let found = words.iter().find(|(_, ours)| *ours == text);
        let found = found.map(|(theirs, _)| Value::from(*theirs));
        found.ok_or_else(|| format!("Karpenter has no equivalent of {text:?}"))
    };
    let duration = || {
        let text = value.as_str().unwrap_or_default().to_owned();
        match text.ends_with("ms") {
            true => Err("Karpenter durations are whole seconds".to_owned()),
            false => Ok(text),
        }
    };
    match shape {
        // Karpenter does not accept exponents.
        FieldKind::Number => value
            .as_f64()
            .map(|number| Value::from(number.to_string()))
            .ok_or_else(|| "the value is not a number".to_owned()),
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
            let length = length.ok_or("Karpenter cannot express this duration")?;
            Ok(Value::from(length.as_secs()))
        }
        _ => Ok(value),
    }
}

/// Converts a size to a unit that Karpenter accepts. EC2 always rounds up to GiB.
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
        false => Err(format!("Karpenter volumes have at most {GIB_MAX}Gi")),
    }
}
