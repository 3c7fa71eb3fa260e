//! Functions of lists, sets and maps. A set is a list without repetitions.

use std::collections::BTreeSet;

use hcl::{Map, Value};

use super::{Args, FunctionError, FunctionResult};
use crate::config::value;

/// Maximum number of elements of a `setproduct`.
const PRODUCT_MAX: usize = 10_000;

/// A string that is equal for two values only if the values are equal.
fn identity(item: &Value) -> String {
    match item {
        Value::Array(items) => {
            let inner: Vec<String> = items.iter().map(identity).collect();
            format!("[{}]", inner.join(","))
        }
        Value::Object(_) => {
            let inner: Vec<String> = value::elements(item)
                .unwrap_or_default()
                .iter()
                .map(|(key, item)| format!("{}={}", identity(key), identity(item)))
                .collect();
            format!("{{{}}}", inner.join(","))
        }
        Value::String(text) => format!("{text:?}"),
        other => value::to_text(other).unwrap_or_else(|| "null".to_owned()),
    }
}

fn without_repetitions<'a>(items: impl IntoIterator<Item = &'a Value>) -> Value {
    let mut seen = BTreeSet::new();
    let distinct = items.into_iter().filter(|item| seen.insert(identity(item)));
    Value::Array(distinct.cloned().collect())
}

fn identities(items: &[Value]) -> BTreeSet<String> {
    items.iter().map(identity).collect()
}

pub(super) fn coalesce(args: &Args<'_>) -> FunctionResult {
    match args.values.iter().find(|item| !item.is_null() && item.as_str() != Some("")) {
        Some(value) => Ok(value.clone()),
        None => Err("all arguments are null or empty".into()),
    }
}

pub(super) fn coalescelist(args: &Args<'_>) -> FunctionResult {
    for arg in 0..args.values.len() {
        if !args.value_at(arg).is_null() && !args.list(arg)?.is_empty() {
            return Ok(args.value_at(arg).clone());
        }
    }
    Err("all arguments are empty".into())
}

pub(super) fn compact(args: &Args<'_>) -> FunctionResult {
    Ok(Value::Array(
        args.list(0)?
            .iter()
            .filter(|item| !item.is_null() && item.as_str() != Some(""))
            .cloned()
            .collect(),
    ))
}

pub(super) fn concat(args: &Args<'_>) -> FunctionResult {
    let mut all = Vec::new();
    for arg in 0..args.values.len() {
        all.extend_from_slice(args.list(arg)?);
    }
    Ok(Value::Array(all))
}

pub(super) fn contains(args: &Args<'_>) -> FunctionResult {
    Ok(Value::Bool(args.list(0)?.contains(args.value_at(1))))
}

pub(super) fn distinct(args: &Args<'_>) -> FunctionResult {
    Ok(without_repetitions(args.list(0)?))
}

pub(super) fn element(args: &Args<'_>) -> FunctionResult {
    let items = args.list(0)?;
    let index = args.integer(1)?;
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if length == 0 {
        return Err(FunctionError::at_argument(0, "the list is empty"));
    }
    let place = usize::try_from(index.rem_euclid(length)).unwrap_or(0);
    Ok(items[place].clone())
}

pub(super) fn flatten(args: &Args<'_>) -> FunctionResult {
    fn flatten_into(items: &[Value], flat: &mut Vec<Value>) {
        for item in items {
            match item {
                Value::Array(inner) => flatten_into(inner, flat),
                other => flat.push(other.clone()),
            }
        }
    }
    let mut flat = Vec::new();
    flatten_into(args.list(0)?, &mut flat);
    Ok(Value::Array(flat))
}

pub(super) fn index(args: &Args<'_>) -> FunctionResult {
    match args.list(0)?.iter().position(|item| item == args.value_at(1)) {
        Some(place) => Ok(Value::from(place)),
        None => Err("the list does not contain this value".into()),
    }
}

pub(super) fn keys(args: &Args<'_>) -> FunctionResult {
    args.map(0)?;
    let elements = value::elements(args.value_at(0)).unwrap_or_default();
    Ok(Value::Array(elements.into_iter().map(|(key, _)| key).collect()))
}

pub(super) fn values(args: &Args<'_>) -> FunctionResult {
    args.map(0)?;
    let elements = value::elements(args.value_at(0)).unwrap_or_default();
    Ok(Value::Array(elements.into_iter().map(|(_, item)| item.clone()).collect()))
}

pub(super) fn length(args: &Args<'_>) -> FunctionResult {
    Ok(Value::from(match args.value_at(0) {
        Value::String(text) => text.chars().count(),
        Value::Array(items) => items.len(),
        Value::Object(items) => items.len(),
        _ => return args.type_error(0, "a list, a map or a string"),
    }))
}

pub(super) fn lookup(args: &Args<'_>) -> FunctionResult {
    let key = args.text(1)?;
    match (args.map(0)?.get(&key), args.values.get(2)) {
        (Some(value), _) => Ok(value.clone()),
        (None, Some(default)) => Ok(default.clone()),
        (None, None) => {
            let text = format!("the map has no key {key:?}, and no default is given");
            Err(FunctionError::at_argument(1, text))
        }
    }
}

pub(super) fn merge(args: &Args<'_>) -> FunctionResult {
    let mut all = Map::new();
    for arg in 0..args.values.len() {
        if args.value_at(arg).is_null() {
            continue;
        }
        for (key, item) in args.map(arg)? {
            all.insert(key.clone(), item.clone());
        }
    }
    Ok(Value::Object(all))
}

pub(super) fn one(args: &Args<'_>) -> FunctionResult {
    match args.list(0)? {
        [] => Ok(Value::Null),
        [only] => Ok(only.clone()),
        items => {
            let count = items.len();
            let text = format!("the list has {count} elements; at most one is allowed");
            Err(FunctionError::at_argument(0, text))
        }
    }
}

pub(super) fn reverse(args: &Args<'_>) -> FunctionResult {
    Ok(Value::Array(args.list(0)?.iter().rev().cloned().collect()))
}

pub(super) fn setintersection(args: &Args<'_>) -> FunctionResult {
    let mut common = identities(args.list(0)?);
    for arg in 1..args.values.len() {
        let other = identities(args.list(arg)?);
        common.retain(|item| other.contains(item));
    }
    let kept = args.list(0)?.iter().filter(|item| common.contains(&identity(item)));
    Ok(without_repetitions(kept))
}

pub(super) fn setsubtract(args: &Args<'_>) -> FunctionResult {
    let taken = identities(args.list(1)?);
    let kept = args.list(0)?.iter().filter(|item| !taken.contains(&identity(item)));
    Ok(without_repetitions(kept))
}

pub(super) fn setunion(args: &Args<'_>) -> FunctionResult {
    let Value::Array(all) = concat(args)? else {
        return Ok(Value::Array(Vec::new()));
    };
    Ok(without_repetitions(&all))
}

pub(super) fn setproduct(args: &Args<'_>) -> FunctionResult {
    let mut rows: Vec<Vec<Value>> = vec![Vec::new()];
    for arg in 0..args.values.len() {
        let items = args.list(arg)?;
        if rows.len().saturating_mul(items.len()) > PRODUCT_MAX {
            return Err(format!("the product has more than {PRODUCT_MAX} elements").into());
        }
        rows = rows
            .iter()
            .flat_map(|row| {
                items.iter().map(|item| {
                    let mut longer = row.clone();
                    longer.push(item.clone());
                    longer
                })
            })
            .collect();
    }
    Ok(Value::Array(rows.into_iter().map(Value::Array).collect()))
}

pub(super) fn slice(args: &Args<'_>) -> FunctionResult {
    let items = args.list(0)?;
    let mut bounds = [0; 2];
    for (arg, bound) in (1..).zip(&mut bounds) {
        *bound = match usize::try_from(args.integer(arg)?) {
            Ok(index) if index <= items.len() => index,
            _ => return args.type_error(arg, &format!("an index from 0 to {}", items.len())),
        };
    }
    let [start, end] = bounds;
    if start > end {
        return args.type_error(2, "an end that is not before the start");
    }
    Ok(Value::Array(items[start..end].to_vec()))
}

pub(super) fn sort(args: &Args<'_>) -> FunctionResult {
    let mut texts = args.texts(0)?;
    texts.sort();
    Ok(Value::Array(texts.into_iter().map(Value::String).collect()))
}

pub(super) fn tolist(args: &Args<'_>) -> FunctionResult {
    match args.value_at(0) {
        Value::Null => Ok(Value::Null),
        _ => Ok(Value::Array(args.list(0)?.to_vec())),
    }
}

pub(super) fn toset(args: &Args<'_>) -> FunctionResult {
    if args.value_at(0).is_null() {
        return Ok(Value::Null);
    }
    let set = without_repetitions(args.list(0)?);
    match set {
        Value::Array(mut items) if items.iter().all(Value::is_string) => {
            items.sort_by(|one, other| one.as_str().cmp(&other.as_str()));
            Ok(Value::Array(items))
        }
        other => Ok(other),
    }
}

pub(super) fn tomap(args: &Args<'_>) -> FunctionResult {
    match args.value_at(0) {
        Value::Null => Ok(Value::Null),
        _ => Ok(Value::Object(args.map(0)?.clone())),
    }
}

pub(super) fn zipmap(args: &Args<'_>) -> FunctionResult {
    let (keys, items) = (args.texts(0)?, args.list(1)?);
    if keys.len() != items.len() {
        let text = format!("there are {} keys and {} values", keys.len(), items.len());
        return Err(text.into());
    }
    Ok(Value::Object(keys.into_iter().zip(items.iter().cloned()).collect()))
}
