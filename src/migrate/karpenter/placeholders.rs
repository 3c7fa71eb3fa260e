//! Placeholders such as `${NAME}` in objects: Karpenter's examples use them for required values, to
//! be replaced with envsubst or a similar tool.

use serde_json::{Map, Value, json};

/// Why a value with a placeholder is dropped.
pub(super) const WHY: &str = "it contains a placeholder; replace it first, for example with \
                              envsubst";

/// The placeholder for the node class of a pool.
pub(super) const NODE_CLASS: &str = "${NODE_CLASS}";

/// Returns the placeholder for a required field of `EC2NodeClass`, in the form of its schema.
pub(super) fn placeholder_for(field: &str) -> Value {
    let discovered = json!([{ "tags": { "karpenter.sh/discovery": "${CLUSTER_NAME}" } }]);
    match field {
        "role" => json!("${NODE_ROLE}"),
        "amiSelectorTerms" => json!([{ "name": "${AMI_NAME}" }]),
        _ => discovered,
    }
}

/// Returns whether a name has a placeholder. No valid name in IAM or Kubernetes contains such a
/// placeholder.
pub(super) fn has_placeholder(text: &str) -> bool {
    text.contains("${")
}

/// Removes the terms that consist only of these placeholders. Other terms are kept, because they
/// can be valid. Returns their positions. Removes the list with its last term.
pub(super) fn take_terms(spec: &mut Map<String, Value>, field: &str) -> Vec<usize> {
    let Some(Value::Array(terms)) = spec.get_mut(field) else {
        return Vec::new();
    };
    let placeholders = placeholder_for(field);
    let placeholders = placeholders.as_array().map_or(&[][..], Vec::as_slice);
    let mut indexes = Vec::new();
    for (index, term) in terms.iter().enumerate() {
        if placeholders.contains(term) {
            indexes.push(index);
        }
    }
    terms.retain(|term| !placeholders.contains(term));
    if terms.is_empty() && !indexes.is_empty() {
        spec.shift_remove(field);
    }
    indexes
}
