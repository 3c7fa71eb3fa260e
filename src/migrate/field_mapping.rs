//! Converts the fields of a Karpenter object to an HCL body and back, by means of field tables.

use serde_json::{Map, Value};
use thiserror::Error;

use crate::migrate::dropped::{DroppedFields, join_path};
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
    /// A keyword: pairs of Karpenter's keyword and Outrigger's keyword.
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

/// A table, with one line per field: `field => name, kind`.
macro_rules! field_mappings {
    ($($field:literal => $name:literal, $shape:expr;)+) => {
        &[$(FieldMapping { field: $field, name: $name, shape: $shape }),+]
    };
}
pub(crate) use field_mappings;

/// Removes the fields of a table from an object and returns their arguments and blocks.
pub(crate) fn import_fields(
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
        let is_optional = matches!(row.shape, FieldKind::Filled);
        if let Some(value) =
            take_field(object, row.field).filter(|value| !is_optional || *value != "")
        {
            let field_path = join_path(path, row.field);
            match row.name.split_once('.') {
                Some((block, name)) => {
                    let mut nested = HclBody::default();
                    import_one(row, name, value, &field_path, &mut nested, losses);
                    body.add_within(block, nested);
                }
                None => import_one(row, row.name, value, &field_path, body, losses),
            }
        }
    }
    report_unknown(rows, object, "", path, losses);
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
            import_fields(rows, &mut object, path, &mut inner, losses);
            body.add_block_unless_empty(name, inner);
        }
        (FieldKind::Blocks(label, rows), Value::Array(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                let item_path = format!("{path}[{index}]");
                let Value::Object(mut object) = item else {
                    losses.add(item_path, "the value is not an object");
                    continue;
                };
                let label = label.map(|field| take_text(&mut object, field).unwrap_or_default());
                let mut inner = HclBody::default();
                import_fields(rows, &mut object, &item_path, &mut inner, losses);
                body.add_block(name, label.as_deref(), inner);
            }
        }
        (shape, value) => match our_value(shape, &value) {
            Ok(value) => body.set(name, value),
            Err(error) => losses.add(path, error.to_string()),
        },
    }
}

/// Reports the fields that no entry of the table has converted.
fn report_unknown(
    rows: &[FieldMapping],
    object: &Map<String, Value>,
    within: &str,
    path: &str,
    losses: &mut DroppedFields,
) {
    for (key, value) in object {
        let step = join_path(within, key);
        match value {
            Value::Null => {}
            Value::Object(inner)
                if rows.iter().any(|row| row.field.starts_with(&format!("{step}."))) =>
            {
                report_unknown(rows, inner, &step, path, losses);
            }
            _ if rows
                .iter()
                .any(|row| matches!(row.shape, FieldKind::ByHand) && row.field == step) => {}
            _ => losses.add(join_path(path, &step), "unknown field"),
        }
    }
}

/// Removes a field by its path. A null value is treated as absent.
pub(crate) fn take_field(object: &mut Map<String, Value>, field: &str) -> Option<Value> {
    match field.split_once('.') {
        Some((first, rest)) => match object.get_mut(first)? {
            Value::Object(inner) => take_field(inner, rest),
            _ => None,
        },
        None => object.shift_remove(field).filter(|value| !value.is_null()),
    }
}

/// Inserts a value at a path.
pub(crate) fn put_field(object: &mut Map<String, Value>, field: &str, value: Value) {
    let Some((first, rest)) = field.split_once('.') else {
        object.insert(field.to_owned(), value);
        return;
    };
    let inner = object.entry(first).or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(inner) = inner {
        put_field(inner, rest, value);
    }
}

/// Returns a string, or a scalar as a string.
pub(crate) fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Returns a scalar as a string; empty if it is missing or not a scalar.
pub(crate) fn text_or_empty(value: Option<&Value>) -> String {
    value.and_then(scalar_text).unwrap_or_default()
}

/// Returns the scalars of a list as strings; empty if the value is not a list.
pub(crate) fn list_texts(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(scalar_text).collect()
}

/// Removes a field by its path and returns it as a string.
pub(crate) fn take_text(object: &mut Map<String, Value>, field: &str) -> Option<String> {
    take_field(object, field).as_ref().and_then(scalar_text)
}

/// Removes a field by its path and returns it; empty if it is not an object.
pub(crate) fn take_object(object: &mut Map<String, Value>, field: &str) -> Map<String, Value> {
    match take_field(object, field) {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// Removes a field by its path and returns it; empty if it is not a list.
pub(crate) fn take_list(object: &mut Map<String, Value>, field: &str) -> Vec<Value> {
    match take_field(object, field) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// Maximum size of a volume in Karpenter, in GiB.
const GIB_MAX: i64 = 59_000;

/// Why a value cannot be converted.
#[derive(Debug, Error)]
enum ValueError {
    #[error("the value is not {0}")]
    Not(&'static str),
    #[error("Outrigger has no equivalent of {0:?}")]
    UnknownToOutrigger(String),
    #[error("Karpenter has no equivalent of {0:?}")]
    UnknownToKarpenter(String),
    #[error("Karpenter durations are whole seconds")]
    SubSecond,
    #[error("Karpenter cannot express this duration")]
    Duration,
    #[error("Karpenter volumes have at most {GIB_MAX}Gi")]
    VolumeSize,
}

/// Returns a scalar as a string, or the error that the value is not `expected`.
fn expect_scalar(value: &Value, expected: &'static str) -> Result<String, ValueError> {
    scalar_text(value).ok_or(ValueError::Not(expected))
}

/// Returns an integer.
fn expect_integer(value: &Value) -> Result<i64, ValueError> {
    const EXPECTED: &str = "an integer; expressions are not supported";
    value.as_i64().ok_or(ValueError::Not(EXPECTED))
}

/// Converts a Karpenter keyword to the keyword of Outrigger.
fn our_keyword(words: Words, value: &Value) -> Result<Value, ValueError> {
    let text = expect_scalar(value, "a string")?;
    match words.iter().find(|(theirs, _)| *theirs == text) {
        Some((_, ours)) => Ok(Value::from(*ours)),
        None => Err(ValueError::UnknownToOutrigger(text)),
    }
}

type Words = &'static [(&'static str, &'static str)];

/// Converts a Karpenter value to a value of an argument.
fn our_value(shape: &FieldKind, value: &Value) -> Result<Value, ValueError> {
    Ok(match shape {
        FieldKind::Text | FieldKind::Filled | FieldKind::Size => {
            expect_scalar(value, "a string")?.into()
        }
        FieldKind::Allowance => number_or_text(expect_scalar(value, "a number")?),
        FieldKind::Flag => value.as_bool().ok_or(ValueError::Not("a bool"))?.into(),
        FieldKind::Whole => expect_integer(value)?.into(),
        FieldKind::Number => {
            let parsed = expect_scalar(value, "a number")?.parse();
            integer_or_float(parsed.map_err(|_| ValueError::Not("a number"))?)
        }
        FieldKind::Words(words) => our_keyword(words, value)?,
        FieldKind::SomeOf(words) => {
            let items = value.as_array().ok_or(ValueError::Not("a list"))?;
            let items = items.iter().map(|item| our_keyword(words, item));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        FieldKind::Duration => match expect_scalar(value, "a duration")?.as_str() {
            "Never" => Value::from("never"),
            text => Value::from(text),
        },
        FieldKind::Seconds => Value::from(format!("{}s", expect_integer(value)?)),
        FieldKind::Texts => {
            let items = value.as_array().ok_or(ValueError::Not("a list"))?;
            let items: Option<Vec<String>> = items.iter().map(scalar_text).collect();
            items.ok_or(ValueError::Not("a list of strings"))?.into()
        }
        FieldKind::Map | FieldKind::Quantities => {
            let items = value.as_object().ok_or(ValueError::Not("a map"))?;
            let items = items.iter().map(|(key, item)| {
                let item = match shape {
                    FieldKind::Quantities => number_or_text(scalar_text(item)?),
                    _ => Value::from(scalar_text(item)?),
                };
                Some((key.clone(), item))
            });
            let items: Option<Map<String, Value>> = items.collect();
            Value::Object(items.ok_or(ValueError::Not("a map of strings"))?)
        }
        FieldKind::Block(_) | FieldKind::ByHand => return Err(ValueError::Not("an object")),
        FieldKind::Blocks(..) => return Err(ValueError::Not("a list")),
    })
}

/// Converts a string to an integer if it is one.
fn number_or_text(text: String) -> Value {
    let number = text.parse::<i64>().ok();
    let number = number.filter(|number| number.to_string() == text);
    number.map_or(Value::from(text), Value::from)
}

/// Converts a float to an integer if it has no fraction.
fn integer_or_float(value: f64) -> Value {
    let text = value.to_string();
    text.parse::<i64>().map_or_else(|_| Value::from(value), Value::from)
}

/// Removes the arguments and blocks of a table from a body and returns the Karpenter object.
pub(crate) fn export_fields(
    rows: &[FieldMapping],
    body: &mut HclBody,
    path: &str,
    object: &mut Map<String, Value>,
    losses: &mut DroppedFields,
) {
    for row in rows {
        match row.name.split_once('.') {
            Some((block, name)) => {
                if let Some(inner) = body.block_body(block) {
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
    let path = join_path(path, row.name);
    match &row.shape {
        FieldKind::ByHand => {}
        FieldKind::Block(rows) => {
            if let Some(mut block) = body.take_blocks(name).pop() {
                let mut inner = Map::new();
                export_fields(rows, &mut block.body, &path, &mut inner, losses);
                report_rest(&block.body, &path, losses);
                put_field(object, row.field, Value::Object(inner));
            }
        }
        FieldKind::Blocks(label, rows) => {
            let mut items = Vec::new();
            for (index, mut block) in body.take_blocks(name).into_iter().enumerate() {
                let mut inner = Map::new();
                if let (Some(field), Some(label)) = (label, block.label) {
                    put_field(&mut inner, field, Value::from(label));
                }
                let item_path = format!("{path}[{index}]");
                export_fields(rows, &mut block.body, &item_path, &mut inner, losses);
                report_rest(&block.body, &item_path, losses);
                items.push(Value::Object(inner));
            }
            if !items.is_empty() {
                put_field(object, row.field, Value::Array(items));
            }
        }
        shape => {
            if let Some(value) = body.take_value(name) {
                match their_value(shape, value) {
                    Ok(value) => put_field(object, row.field, value),
                    Err(error) => losses.add(path, error.to_string()),
                }
            }
        }
    }
}

/// Reports the arguments and blocks that no entry of the table has converted.
pub(crate) fn report_rest(body: &HclBody, path: &str, losses: &mut DroppedFields) {
    for item in &body.items {
        match item {
            HclItem::Argument(name, _) => losses.add(join_path(path, name), export_fault(name)),
            HclItem::Block(block) if block.body.is_empty() => {}
            HclItem::Block(block) if block.label.is_none() && block.kind == "disruption" => {
                report_rest(&block.body, &join_path(path, block.kind), losses);
            }
            HclItem::Block(block) => {
                losses.add(join_path(path, block.kind), export_fault(block.kind))
            }
            HclItem::Comment(_) => {}
        }
    }
}

/// Returns why an argument cannot be exported.
fn export_fault(name: &str) -> &'static str {
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
fn their_value(shape: &FieldKind, value: Value) -> Result<Value, ValueError> {
    Ok(match shape {
        // Karpenter does not accept exponents.
        FieldKind::Number => {
            let number = value.as_f64().ok_or(ValueError::Not("a number"))?;
            Value::from(number.to_string())
        }
        FieldKind::Size => volume_size(&value)?,
        FieldKind::Allowance => scalar_text(&value).map_or(value, Value::from),
        FieldKind::Words(words) => their_keyword(words, &value)?,
        FieldKind::SomeOf(words) => {
            let items = value.as_array().into_iter().flatten();
            let items = items.map(|item| their_keyword(words, item));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        FieldKind::Duration => match whole_seconds(&value)? {
            "never" => Value::from("Never"),
            text => Value::from(text),
        },
        FieldKind::Seconds => {
            let length = crate::model::duration::parse_go(whole_seconds(&value)?);
            Value::from(length.ok_or(ValueError::Duration)?.as_secs())
        }
        _ => value,
    })
}

/// Converts a keyword of Outrigger to the keyword of Karpenter.
fn their_keyword(words: Words, value: &Value) -> Result<Value, ValueError> {
    let text = value.as_str().unwrap_or_default();
    match words.iter().find(|(_, ours)| *ours == text) {
        Some((theirs, _)) => Ok(Value::from(*theirs)),
        None => Err(ValueError::UnknownToKarpenter(text.to_owned())),
    }
}

/// Returns a duration, or an error if it has a fraction of a second.
fn whole_seconds(value: &Value) -> Result<&str, ValueError> {
    let text = value.as_str().unwrap_or_default();
    match text.ends_with("ms") {
        true => Err(ValueError::SubSecond),
        false => Ok(text),
    }
}

/// Converts a size to a unit that Karpenter accepts. EC2 always rounds up to GiB.
fn volume_size(value: &Value) -> Result<Value, ValueError> {
    const GIB: i64 = 1 << 30;
    let text = scalar_text(value).unwrap_or_default();
    let Ok(bytes) = text.parse::<i64>() else {
        return Ok(Value::from(text));
    };
    let gib = bytes / GIB + i64::from(bytes % GIB > 0);
    match gib <= GIB_MAX {
        true => Ok(Value::from(format!("{gib}Gi"))),
        false => Err(ValueError::VolumeSize),
    }
}
