//! What an object has to say and nobody has said: Karpenter's examples write it as `${NAME}`, for
//! envsubst or the like to fill in.
//! It must not know in which direction objects go.

use serde_json::{Map, Value, json};

/// Why something is lost that holds such a name.
pub(super) const WHY: &str = "it is yet to be filled in, with envsubst or the like";

/// The name of the node class of a pool without.
pub(super) const NODE_CLASS: &str = "${NODE_CLASS}";

/// What stands in place of a field that `EC2NodeClass` does not do without, as its schema takes it.
pub(super) fn of(field: &str) -> Value {
    let discovered = json!([{ "tags": { "karpenter.sh/discovery": "${CLUSTER_NAME}" } }]);
    match field {
        "role" => json!("${NODE_ROLE}"),
        "amiSelectorTerms" => json!([{ "name": "${AMI_NAME}" }]),
        _ => discovered,
    }
}

/// Whether something is yet to be filled in.
pub(super) fn is_in(value: &Value) -> bool {
    match value {
        Value::String(text) => text.split("${").skip(1).any(is_name),
        Value::Array(all) => all.iter().any(is_in),
        Value::Object(all) => all.values().any(is_in),
        _ => false,
    }
}

/// Whether it begins with the name of a variable and the end of its brace.
fn is_name(rest: &str) -> bool {
    let upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let name = rest.split_once('}').map_or("", |(name, _)| name);
    !name.is_empty() && name.chars().all(upper)
}

/// Takes the terms of a list out that are yet to be filled in. Returns where they were; the list
/// goes with its last.
pub(super) fn take_terms(spec: &mut Map<String, Value>, field: &str) -> Vec<usize> {
    let Some(Value::Array(terms)) = spec.get_mut(field) else {
        return Vec::new();
    };
    let places = (0..).zip(terms.iter());
    let blank: Vec<usize> = places
        .filter_map(|(at, term)| is_in(term).then_some(at))
        .collect();
    terms.retain(|term| !is_in(term));
    if terms.is_empty() && !blank.is_empty() {
        spec.shift_remove(field);
    }
    blank
}
