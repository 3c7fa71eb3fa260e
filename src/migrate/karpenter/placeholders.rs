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

/// Whether a name is yet to be filled in: nothing in IAM or Kubernetes has such a one.
pub(super) fn is_name(text: &str) -> bool {
    text.contains("${")
}

/// Takes the terms of a list out that are yet to be filled in, in the words above: any others might
/// be meant. Returns where they were; the list goes with its last.
pub(super) fn take_terms(spec: &mut Map<String, Value>, field: &str) -> Vec<usize> {
    let Some(Value::Array(terms)) = spec.get_mut(field) else {
        return Vec::new();
    };
    let blank = of(field);
    let is_blank = |term: &Value| blank.as_array().is_some_and(|all| all.contains(term));
    let places = (0..).zip(terms.iter());
    let at: Vec<usize> = places
        .filter_map(|(at, term)| is_blank(term).then_some(at))
        .collect();
    terms.retain(|term| !is_blank(term));
    if terms.is_empty() && !at.is_empty() {
        spec.shift_remove(field);
    }
    at
}
