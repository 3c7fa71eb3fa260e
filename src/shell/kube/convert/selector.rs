//! Node selector terms and label selectors as requirements.
//! It must not know what they select.

use crate::model::requirement::{Operator, Requirement, Requirements};
use crate::shell::kube::object::{Expression, LabelSelector};

/// The requirements that all expressions of a term make together, or what is wrong with one.
pub(super) fn expressions(expressions: &[Expression]) -> Result<Requirements, String> {
    let mut requirements = Requirements::default();
    for expression in expressions {
        let operator = match expression.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::Gt,
            "Lt" => Operator::Lt,
            other => return Err(format!("the operator {other:?} of {:?}", expression.key)),
        };
        let requirement = Requirement::from_operator(operator, &expression.values)
            .map_err(|why| format!("the label {:?}: {why}", expression.key))?;
        requirements.add(&expression.key, requirement);
    }
    Ok(requirements)
}

/// What a label selector selects. Of one whose expressions cannot be read only the labels count, so
/// that it selects more rather than less and whatever it protects stays protected.
pub(super) fn labels(selector: LabelSelector) -> Requirements {
    let mut requirements = expressions(&selector.match_expressions).unwrap_or_default();
    requirements.add_all(&Requirements::from_labels(&selector.match_labels));
    requirements
}
