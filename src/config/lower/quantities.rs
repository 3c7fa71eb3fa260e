//! Converts maps of quantities: limits and pod requests.

use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::syntax::PathStep;
use crate::model::pool::Limits;
use crate::model::quantity::Resources;

/// The node limits in the argument `limits`.
pub(super) fn node_limits(section: &DecodedBlock) -> Limits {
    let mut limits = Limits::default();
    for (name, amount) in section.quantities("limits") {
        if name == "nodes" {
            limits.nodes = u32::try_from(*amount).ok();
        } else {
            limits.capacity.push((name.clone(), *amount));
        }
    }
    limits.capacity.sort();
    limits
}

/// The requests of a pod with these quantities.
pub(super) fn pod_requests(amounts: &[(String, i64)]) -> Resources {
    let mut all = Resources { pods: 1, ..Resources::default() };
    for (name, amount) in amounts {
        match name.as_str() {
            "cpu" => all.cpu_milli = *amount,
            "memory" => all.memory = *amount,
            "ephemeral-storage" => all.ephemeral_storage = *amount,
            other => drop(all.extended.insert(other.to_owned(), *amount)),
        }
    }
    all
}

/// Returns whether a map of quantities is set and not empty, even if it is invalid.
pub(super) fn has_quantities(section: &DecodedBlock, argument: &str) -> bool {
    let is_valid = section.get(argument).is_some();
    section.is_set(argument) && !(is_valid && section.quantities(argument).is_empty())
}

/// Reports names that a map of quantities must not contain. Returns true if there are any.
pub(super) fn refuse_names(
    section: &DecodedBlock,
    argument: &str,
    names: &[&str],
    why: &str,
) -> bool {
    let refused: Vec<&String> = section
        .quantities(argument)
        .iter()
        .map(|(name, _)| name)
        .filter(|name| names.contains(&name.as_str()))
        .collect();
    for name in &refused {
        let span = section.inner_span(argument, PathStep::KeyItself((*name).clone()));
        let detail = format!("{name:?} is not expected in {argument}: {why}.");
        section.error(ProblemCode::InvalidValue, span, detail);
    }
    !refused.is_empty()
}
