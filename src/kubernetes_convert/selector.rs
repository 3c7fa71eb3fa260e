//! Converts node selector terms and label selectors to requirements.

use std::fmt;

use thiserror::Error;

use crate::kubernetes_convert::api_types::{Expression, LabelSelector, NodeSelectorTerm};
use crate::model::labels::{Labels, NODE_NAME};
use crate::model::requirement::{Operator, Requirement, Requirements};
use crate::model::selector::Selector;

/// Maximum number of expressions in a term or selector. The API limits only the size of an object.
const EXPRESSIONS_MAX: usize = 100;
const VALUES_MAX: usize = 1000;

/// Why a selector, a term or another constraint of a pod is invalid.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct ConstraintError(pub(super) String);

impl ConstraintError {
    fn for_label(key: &str, why: impl fmt::Display) -> Self {
        Self(format!("the label {key:?}: {why}"))
    }
}

/// Converts a node selector term. The node name is one of the labels. `None` if it selects no node,
/// because it is empty or contradictory. Returns an error if it is invalid.
pub(super) fn convert_term(
    term: &NodeSelectorTerm,
) -> Result<Option<Requirements>, ConstraintError> {
    let mut requirements = Requirements::default();
    for expression in check_expressions(&term.match_expressions)? {
        requirements.add(&expression.key, node_requirement(expression)?);
    }
    for expression in check_expressions(&term.match_fields)? {
        requirements.add(NODE_NAME, name_requirement(expression)?);
    }
    let useful = !requirements.is_empty()
        && requirements.iter().all(|(_, requirement)| !requirement.is_impossible());
    Ok(useful.then_some(requirements))
}

fn check_expressions(expressions: &[Expression]) -> Result<&[Expression], ConstraintError> {
    check_count(expressions.len(), "expressions")?;
    let mut all = expressions.iter();
    match all.find(|expression| expression.values.len() > VALUES_MAX) {
        Some(long) => {
            let why = format!("{} values are more than are weighed", long.values.len());
            Err(ConstraintError::for_label(&long.key, why))
        }
        None => Ok(expressions),
    }
}

/// Returns an error if there are more items than the maximum number of expressions.
fn check_count(count: usize, items: &str) -> Result<(), ConstraintError> {
    match count > EXPRESSIONS_MAX {
        true => Err(ConstraintError(format!("{count} {items} are more than are weighed"))),
        false => Ok(()),
    }
}

/// Converts an expression about a node label.
fn node_requirement(expression: &Expression) -> Result<Requirement, ConstraintError> {
    let is_minimum = match expression.operator.as_str() {
        "Gt" => true,
        "Lt" => false,
        _ => return label_requirement(expression),
    };
    let [number] = expression.values.as_slice() else {
        let why = "exactly one value is wanted";
        return Err(ConstraintError::for_label(&expression.key, why));
    };
    let number = number
        .parse::<i64>()
        .map_err(|_| ConstraintError::for_label(&expression.key, "one integer is wanted"))?;
    // Unlike pools, pods may compare with negative numbers.
    let bound = match is_minimum {
        true => number.checked_add(1),
        false => number.checked_sub(1),
    };
    Ok(match bound {
        None => Requirement::impossible(),
        bound if is_minimum => Requirement::between(bound, None),
        bound => Requirement::between(None, bound),
    })
}

/// Converts an expression about a label of any object.
fn label_requirement(expression: &Expression) -> Result<Requirement, ConstraintError> {
    let Expression { key, values, .. } = expression;
    let operator = match expression.operator.as_str() {
        "In" => Operator::In,
        "NotIn" if values.is_empty() => {
            return Err(ConstraintError::for_label(key, "NotIn wants at least one value"));
        }
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        operator => {
            return Err(ConstraintError(format!("the operator {operator:?} of {key:?}")));
        }
    };
    Requirement::from_operator(operator, values).map_err(|why| ConstraintError::for_label(key, why))
}

/// Converts an expression about the node name, the only supported field. Source: Kubernetes,
/// `NodeSelectorTerm.matchFields`.
fn name_requirement(expression: &Expression) -> Result<Requirement, ConstraintError> {
    let Expression { key, values, .. } = expression;
    if key != "metadata.name" {
        return Err(ConstraintError(format!("the field {key:?}")));
    }
    let why = match (expression.operator.as_str(), values.as_slice()) {
        ("In", [name]) => return Ok(Requirement::is_in([name.as_str()])),
        ("NotIn", [name]) => return Ok(Requirement::not_in([name.as_str()])),
        ("In" | "NotIn", _) => format!("the field {key:?}: exactly one value is wanted"),
        (operator, _) => format!("the operator {operator:?} of the field {key:?}"),
    };
    Err(ConstraintError(why))
}

/// Converts a label selector exactly. Returns an error if it is invalid.
pub(super) fn convert_selector(selector: &LabelSelector) -> Result<Selector, ConstraintError> {
    check_count(selector.match_labels.len(), "labels")?;
    let mut selected = Selector::from_labels(&selector.match_labels);
    for expression in check_expressions(&selector.match_expressions)? {
        selected.add_expression(&expression.key, label_requirement(expression)?);
    }
    Ok(selected)
}

/// Restricts a selector to pods with the pod's own values of some labels (`matchLabelKeys`), and
/// with different values of other labels (`mismatchLabelKeys`). Labels that the pod does not have
/// are ignored.
pub(super) fn merge_label_keys(
    selector: &mut Selector,
    matched: &[String],
    mismatched: &[String],
    pod_labels: &Labels,
) -> Result<(), ConstraintError> {
    check_count(matched.len() + mismatched.len(), "label keys")?;
    let matched = matched.iter();
    for (key, value) in matched.filter_map(|key| pod_labels.get_key_value(key)) {
        selector.add_expression(key, Requirement::is_in([value.as_str()]));
    }
    let mismatched = mismatched.iter();
    for (key, value) in mismatched.filter_map(|key| pod_labels.get_key_value(key)) {
        selector.add_expression(key, Requirement::not_in([value.as_str()]));
    }
    Ok(())
}

/// Converts the selector of a disruption budget, and reports invalid parts. An invalid selector is
/// reduced to its labels, or to all pods if there are too many. It then selects more pods, so every
/// protected pod remains protected.
pub(super) fn protecting_selector(from: &LabelSelector) -> (Selector, Option<ConstraintError>) {
    match convert_selector(from) {
        Ok(selector) => (selector, None),
        Err(why) => {
            let labels = LabelSelector {
                match_labels: from.match_labels.clone(),
                ..LabelSelector::default()
            };
            (convert_selector(&labels).unwrap_or_default(), Some(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{convert_selector, convert_term, merge_label_keys};
    use crate::model::labels::Labels;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn node_selector_term_combines_its_expressions() {
        let json = |text: &str| {
            let mut words = text.split(' ');
            let (key, operator) = (words.next().expect("a key"), words.next().expect("one"));
            let values: Vec<String> = words.map(|word| format!("{word:?}")).collect();
            let values = values.join(",");
            format!(r#"{{"key": "{key}", "operator": "{operator}", "values": [{values}]}}"#)
        };
        let (none, unreadable) = ("no node", "cannot be read");
        let cases: [(&[&str], &str); 23] = [
            (&["k In a b"], "k in [a, b]"),
            (&["k In"], unreadable),
            (&["k NotIn a"], "k not in [a]"),
            (&["k NotIn"], unreadable),
            (&["k Exists"], "k exists"),
            (&["k DoesNotExist"], "k does not exist"),
            (&["k Gt -5"], "k >= 0"),
            (&["k Lt -5"], none),
            (&["k Lt 0"], none),
            (&["k Gt 9223372036854775807"], none),
            (&["k Lt -9223372036854775808"], none),
            (&["k Gt 9223372036854775808"], unreadable),
            (&["k Gt x"], unreadable),
            (&["k Gt 1 2"], unreadable),
            (&["k Gte 1"], unreadable),
            (&["beta.kubernetes.io/arch In a"], "kubernetes.io/arch in [a]"),
            // Contradictory expressions on the same key.
            (&["k In a", "k In b"], none),
            (&["k In a", "k NotIn a"], none),
            (&["k Exists", "k DoesNotExist"], none),
            (&["k DoesNotExist", "k Gt 1"], none),
            (&["k Gt 5", "k Lt 6"], none),
            (&["k DoesNotExist", "k NotIn a"], "k does not exist"),
            (&[], none),
        ];
        for (expressions, expect) in cases {
            let all: Vec<String> = expressions.iter().map(|text| json(text)).collect();
            let all = format!(r#"{{"matchExpressions": [{}]}}"#, all.join(","));
            let got = match convert_term(&serde_json::from_str(&all).expect("a term")) {
                Ok(Some(requirements)) => requirements.to_string(),
                Ok(None) => none.to_owned(),
                Err(_) => unreadable.to_owned(),
            };
            assert_eq!(got, expect, "{expressions:?}");
        }
    }

    #[test]
    fn match_fields_support_only_the_node_name() {
        let cases = [
            (
                r#""key": "metadata.name", "operator": "In", "values": ["n"]"#,
                Some("metadata.name in [n]"),
            ),
            (
                r#""key": "metadata.name", "operator": "NotIn", "values": ["n"]"#,
                Some("metadata.name not in [n]"),
            ),
            (r#""key": "metadata.name", "operator": "In", "values": ["n", "m"]"#, None),
            (r#""key": "metadata.name", "operator": "Exists""#, None),
            (r#""key": "spec.unschedulable", "operator": "In", "values": ["true"]"#, None),
        ];
        for (field, expect) in cases {
            let json = format!(r#"{{"matchFields": [{{{field}}}]}}"#);
            let read = convert_term(&serde_json::from_str(&json).expect("a term"));
            let got = read.ok().flatten().map(|requirements| requirements.to_string());
            assert_eq!(got.as_deref(), expect, "{field}");
        }
    }

    #[test]
    fn oversized_terms_are_rejected() {
        let values: Vec<String> = (0..1001).map(|at| format!(r#""{at}""#)).collect();
        let long = format!(r#"{{"key": "k", "operator": "In", "values": [{}]}}"#, values.join(","));
        let short = r#"{"key": "k", "operator": "Exists"}"#;
        let read = |expressions: String| {
            let json = format!(r#"{{"matchExpressions": [{expressions}]}}"#);
            convert_term(&serde_json::from_str(&json).expect("a term"))
        };
        assert!(read(long).is_err());
        assert!(read(vec![short; 101].join(",")).is_err());
        assert!(read(vec![short; 100].join(",")).is_ok());
    }

    #[test]
    fn label_selector_merges_match_label_keys_of_the_pod() {
        let pod_labels = labels(&[("app", "web"), ("hash", "1")]);
        let keys = |list: &str| -> Vec<String> { serde_json::from_str(list).expect("keys") };
        // The selector, keys that must match, keys that must not match, and which of three pods it
        // selects.
        let cases = [
            (r"{}", "[]", "[]", "yyy"),
            (r#"{"matchLabels": {"app": "web"}}"#, "[]", "[]", "yyn"),
            (r#"{"matchLabels": {"app": "web"}}"#, r#"["hash", "absent"]"#, "[]", "ynn"),
            (r#"{"matchLabels": {"app": "web"}}"#, "[]", r#"["hash", "absent"]"#, "nyn"),
            (
                r#"{"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}"#,
                "[]",
                "[]",
                "nny",
            ),
            (
                r#"{"matchLabels": {"app": "web"}, "matchExpressions":
                [{"key": "app", "operator": "NotIn", "values": ["web"]}]}"#,
                "[]",
                "[]",
                "nnn",
            ),
        ];
        let pods = [pod_labels.clone(), labels(&[("app", "web"), ("hash", "2")]), Labels::new()];
        for (json, matched, mismatched, expect) in cases {
            let json = serde_json::from_str(json).expect("a selector");
            let mut read = convert_selector(&json).expect("a readable selector");
            merge_label_keys(&mut read, &keys(matched), &keys(mismatched), &pod_labels)
                .expect("few keys");
            let got: String =
                pods.iter().map(|pod| if read.matches(pod) { 'y' } else { 'n' }).collect();
            assert_eq!(got, expect, "{json:?} {matched} {mismatched}");
        }
        let gt = r#"{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}"#;
        assert!(convert_selector(&serde_json::from_str(gt).expect("a selector")).is_err());
    }
}
