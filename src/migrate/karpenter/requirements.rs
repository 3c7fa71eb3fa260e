//! Requirements: Karpenter's list of operators, and one block per label.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{scalar_text, take_field, take_text};
use crate::migrate::hcl::{HclBody, HclItem, HclValue};
use crate::model::labels::normalized_key;
use crate::model::requirement::{Operator, Requirement, Requirements};

/// Karpenter operators with the corresponding arguments.
const OPERATORS: [(&str, &str, Operator); 8] = [
    ("In", "in", Operator::In),
    ("NotIn", "not_in", Operator::NotIn),
    ("Exists", "exists", Operator::Exists),
    ("DoesNotExist", "exists", Operator::DoesNotExist),
    ("Gt", "gt", Operator::Gt),
    ("Gte", "gte", Operator::Gte),
    ("Lt", "lt", Operator::Lt),
    ("Lte", "lte", Operator::Lte),
];

/// Why a list of requirements cannot be converted.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct RequirementsError(String);

/// One entry of a list.
struct RequirementEntry {
    key: String,
    argument: &'static str,
    requirement: Requirement,
    values: Vec<String>,
}

/// Converts a list of requirements to blocks, in the order of their keys. `Err` has the requirement
/// that is invalid or cannot be satisfied: without it, the other requirements would allow more
/// nodes.
pub(super) fn import_requirements(
    value: Option<Value>,
    path: &str,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) -> Result<(), RequirementsError> {
    let value = value.unwrap_or_else(|| json!([]));
    let not_a_list = || RequirementsError("requirements is not a list".to_owned());
    let items = value.as_array().ok_or_else(not_a_list)?;
    let mut groups: Vec<(String, Vec<RequirementEntry>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let entry = parse_entry(item, &format!("{path}[{index}]"), losses)?;
        let key = normalized_key(&entry.key).to_owned();
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, entries)) => entries.push(entry),
            None => groups.push((key, vec![entry])),
        }
    }
    for (_, entries) in groups {
        group_block(&entries, path, body, losses)?;
    }
    Ok(())
}

fn parse_entry(
    item: &Value,
    path: &str,
    losses: &mut DroppedFields,
) -> Result<RequirementEntry, RequirementsError> {
    let fault = |why: &str| RequirementsError(format!("{path}: {why}"));
    let Value::Object(mut object) = item.clone() else {
        return Err(fault("the value is not an object"));
    };
    let key = take_text(&mut object, "key").ok_or_else(|| fault("the entry has no key"))?;
    let word = take_text(&mut object, "operator");
    let word = word.ok_or_else(|| fault("the entry has no operator"))?;
    let known = OPERATORS.iter().find(|(theirs, ..)| *theirs == word);
    let (_, argument, operator) =
        known.ok_or_else(|| fault(&format!("unknown operator {word:?}")))?;
    let values = match take_field(&mut object, "values") {
        Some(Value::Array(values)) => values.iter().map(scalar_text).collect(),
        None => Some(Vec::new()),
        Some(_) => None,
    };
    let values: Vec<String> = values.ok_or_else(|| fault("values is not a list of strings"))?;
    let mut requirement = Requirement::from_operator(*operator, &values)
        .map_err(|error| fault(&error.to_string()))?;
    if let Some(min_values) = take_field(&mut object, "minValues") {
        let count = min_values.as_u64().map(u32::try_from);
        let count = count.and_then(Result::ok);
        let count = count.ok_or_else(|| fault("minValues is not a number"))?;
        requirement.min_values = Some(count);
    }
    for name in object.keys() {
        losses.add(format!("{path}.{name}"), "unknown field");
    }
    Ok(RequirementEntry { key, argument, requirement, values })
}

/// Converts all entries of one label to a block.
fn group_block(
    entries: &[RequirementEntry],
    path: &str,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) -> Result<(), RequirementsError> {
    let [first, others @ ..] = entries else {
        return Ok(());
    };
    let mut inner = HclBody::default();
    if others.is_empty() {
        // A single entry is kept as written.
        match (first.argument, first.values.as_slice()) {
            ("exists", _) => {
                let exists = first.requirement.operator() != Operator::DoesNotExist;
                inner.set("exists", exists);
            }
            ("in" | "not_in", values) => inner.set(first.argument, values.to_vec()),
            (name, values) => {
                let number = values.first().and_then(|value| value.parse::<i64>().ok());
                inner.set(name, number);
            }
        }
        inner.set_some("min_values", first.requirement.min_values);
    } else {
        let all = others
            .iter()
            .fold(first.requirement.clone(), |all, entry| all.intersection(&entry.requirement));
        if all.is_impossible() {
            let why = format!("no value of {:?} satisfies all requirements", first.key);
            return Err(RequirementsError(why));
        }
        if !set_arguments(&all, &mut inner) {
            let why = "a require block cannot have not_in and exists; Karpenter ignores Exists \
                       next to NotIn";
            losses.add(format!("{path}[{}: Exists]", first.key), why);
        }
    }
    body.add_block("require", Some(&first.key), inner);
    Ok(())
}

/// Converts requirements to blocks.
pub(super) fn requirement_blocks(requirements: &Requirements, body: &mut HclBody) {
    for (key, requirement) in requirements.iter() {
        let mut inner = HclBody::default();
        set_arguments(requirement, &mut inner);
        body.add_block("require", Some(key), inner);
    }
}

/// Returns the arguments of a requirement, and whether they are complete.
fn set_arguments(requirement: &Requirement, body: &mut HclBody) -> bool {
    let (low, high) = requirement.bounds();
    let excluded = requirement.excluded_values();
    let bounded = low.is_some() || high.is_some();
    if let Some(values) = requirement.values().filter(|values| !values.is_empty()) {
        body.set("in", values.iter().cloned().collect::<Vec<String>>());
    } else if requirement.operator() == Operator::DoesNotExist {
        body.set("exists", false);
    } else if let Some(values) = excluded.filter(|values| !values.is_empty()) {
        body.set("not_in", values.iter().cloned().collect::<Vec<String>>());
    } else if requirement.allows_absence() {
        body.set("not_in", Vec::<String>::new());
    } else if !bounded {
        body.set("exists", true);
    }
    body.set_some("gte", low);
    body.set_some("lte", high);
    body.set_some("min_values", requirement.min_values);
    let names = excluded.is_some_and(|values| !values.is_empty());
    !names || bounded || requirement.allows_absence()
}

/// Converts blocks to Karpenter's list.
pub(super) fn export_requirements(body: &mut HclBody) -> Value {
    let mut all = Vec::new();
    for mut block in body.take_blocks("require") {
        let key = block.label.unwrap_or_default();
        let min_values = block.body.take_value("min_values");
        let mut first = true;
        for item in &block.body.items {
            let HclItem::Argument(name, HclValue::Value(value)) = item else {
                continue;
            };
            let mut entry = Map::new();
            entry.insert("key".to_owned(), json!(key));
            let (operator, values) = operator_and_values(name, value);
            // An empty exclusion has no effect, and Karpenter rejects an empty list.
            if values.is_empty() && operator == "NotIn" {
                continue;
            }
            entry.insert("operator".to_owned(), json!(operator));
            if !values.is_empty() {
                entry.insert("values".to_owned(), json!(values));
            }
            if let Some(min_values) = min_values.as_ref().filter(|_| first) {
                entry.insert("minValues".to_owned(), min_values.clone());
            }
            first = false;
            all.push(Value::Object(entry));
        }
    }
    Value::Array(all)
}

fn operator_and_values(name: &str, value: &Value) -> (&'static str, Vec<String>) {
    let operator = match value {
        Value::Bool(false) => "DoesNotExist",
        _ => {
            let found = OPERATORS.iter().find(|(_, ours, _)| *ours == name);
            found.map_or("Exists", |(theirs, ..)| theirs)
        }
    };
    let values = match value {
        Value::Array(items) => items.iter().filter_map(scalar_text).collect(),
        Value::Number(number) => vec![number.to_string()],
        _ => Vec::new(),
    };
    (operator, values)
}

/// Returns the labels of a list of requirements.
pub(super) fn requirement_keys(items: &[Value]) -> BTreeSet<String> {
    let keys = items.iter().filter_map(|item| item.get("key")?.as_str());
    keys.map(|key| normalized_key(key).to_owned()).collect()
}
