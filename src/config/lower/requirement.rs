//! Converts `require` blocks to requirements, and rejects requirements that no node can meet.

use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::kubernetes_names::{label_key_fault, label_value_fault};
use crate::config::lower::report_exclusive;
use crate::config::report::error_at;
use crate::config::syntax::PathStep;
use crate::config::value::expected_names;
use crate::model::instance::CapacityType;
use crate::model::labels::{ARCH, CAPACITY_TYPE, OS, POOL, label_restriction, normalized_key};
use crate::model::requirement::{Operator, Requirement, Requirements};

/// Every operator with its argument.
const OPERATORS: [(&str, Operator); 7] = [
    ("in", Operator::In),
    ("not_in", Operator::NotIn),
    ("exists", Operator::Exists),
    ("gt", Operator::Gt),
    ("gte", Operator::Gte),
    ("lt", Operator::Lt),
    ("lte", Operator::Lte),
];

/// Pairs of arguments that exclude each other.
const EXCLUSIVE: [(&str, &str); 9] = [
    ("in", "not_in"),
    ("in", "exists"),
    ("not_in", "exists"),
    ("gt", "gte"),
    ("lt", "lte"),
    ("exists", "gt"),
    ("exists", "gte"),
    ("exists", "lt"),
    ("exists", "lte"),
];

/// The type of block that contains a requirement.
#[derive(Clone, Copy)]
pub(super) enum RequirementOwner {
    Pool,
    Overlay,
}

/// All requirements of a pool or an overlay.
pub(super) fn lower_requirements(parent: &DecodedBlock, whose: RequirementOwner) -> Requirements {
    let mut all = Requirements::default();
    for section in parent.blocks("require") {
        if let Some(requirement) = lower_requirement(section, whose) {
            all.add(section.label(), requirement);
        }
    }
    all
}

/// Why a label can be neither required nor set.
pub(super) fn restriction_of(key: &str) -> Option<&'static str> {
    match key {
        POOL => Some("it is set to the name of the pool"),
        key => label_restriction(key),
    }
}

/// Reports a key that cannot be used. Returns true if the key was reported.
pub(super) fn refuse_key(section: &DecodedBlock, whose: RequirementOwner) -> bool {
    let key = section.label();
    let (who, restricted) = match whose {
        RequirementOwner::Pool => ("A pool", restriction_of(key)),
        RequirementOwner::Overlay => ("An overlay", label_restriction(key)),
    };
    let (code, detail) = match (label_key_fault(key), restricted) {
        (Some(why), _) => (ProblemCode::InvalidLabel, format!("{key:?} is not a valid key. {why}")),
        (None, Some(why)) => {
            (ProblemCode::RestrictedLabel, format!("{who} cannot use the key {key:?}: {why}."))
        }
        (None, None) => return false,
    };
    section.error(code, section.label_span(), detail);
    true
}

fn lower_requirement(section: &DecodedBlock, whose: RequirementOwner) -> Option<Requirement> {
    let key = section.label();
    // An empty label is already reported.
    if key.is_empty() || refuse_key(section, whose) {
        return None;
    }
    let used: Vec<(&str, Operator)> =
        OPERATORS.iter().filter(|(name, _)| section.get(name).is_some()).copied().collect();
    if used.is_empty() {
        if !OPERATORS.iter().any(|(name, _)| section.is_set(name)) {
            let detail = format!("The requirement on {key:?} has no operator.");
            error_at(ProblemCode::MissingArgument, section.header, detail)
                .help("write one of in, not_in, exists, gt, gte, lt, lte")
                .report(section);
        }
        return None;
    }
    let mut exclusive = EXCLUSIVE.into_iter();
    if exclusive.any(|(one, other)| report_exclusive(section, one, other)) || !values_fine(section)
    {
        return None;
    }
    let mut requirement = Requirement::exists();
    for (name, operator) in &used {
        let (operator, values) = match (section.whole_number(name), section.flag(name)) {
            (Some(whole), _) => (*operator, vec![whole.to_string()]),
            (_, Some(false)) => (Operator::DoesNotExist, Vec::new()),
            _ => (*operator, section.texts(name).unwrap_or_default().to_vec()),
        };
        match Requirement::from_operator(operator, &values) {
            Ok(bound) => requirement = requirement.intersection(&bound),
            Err(_) => {
                let detail = format!("{name} is empty, so no value of {key:?} matches.");
                let code = ProblemCode::InvalidValue;
                section.error(code, section.value_span(name), detail);
                return None;
            }
        }
    }
    let absent = section.flag("exists") == Some(false);
    if requirement.operator() == Operator::DoesNotExist && !absent {
        let mut finding = error_at(
            ProblemCode::Impossible,
            section.value_span(used[0].0),
            format!("No value of {key:?} meets all of these conditions."),
        );
        for (name, _) in used.iter().skip(1) {
            finding = finding.also(section.value_span(name), "");
        }
        finding.report(section);
        return None;
    }
    requirement.min_values = section.count("min_values");
    check_min_values(section);
    Some(requirement)
}

/// The tenancy of an instance. Source: spec/aws.md §4.2.
const TENANCY: &str = "karpenter.k8s.aws/instance-tenancy";

fn values_fine(section: &DecodedBlock) -> bool {
    let known: &[&str] = match normalized_key(section.label()) {
        CAPACITY_TYPE => &CapacityType::NAMES,
        ARCH => &["amd64", "arm64"],
        OS => &["linux", "windows"],
        TENANCY => &["default", "dedicated"],
        _ => &[],
    };
    let mut is_valid = true;
    for name in ["in", "not_in"] {
        for (index, text) in section.texts(name).unwrap_or_default().iter().enumerate() {
            let span = section.inner_span(name, PathStep::Index(index));
            let finding = if let Some(why) = label_value_fault(text) {
                let detail = format!("{text:?} is not a valid label value. {why}");
                error_at(ProblemCode::InvalidLabel, span, detail)
            } else if !known.is_empty() && !known.contains(&text.as_str()) {
                let detail = format!("{} cannot have the value {text:?}.", section.label());
                error_at(ProblemCode::InvalidValue, span, detail).help(expected_names(text, known))
            } else {
                continue;
            };
            finding.report(section);
            is_valid = false;
        }
    }
    is_valid
}

fn check_min_values(section: &DecodedBlock) {
    let (Some(min_values), Some(values)) = (section.count("min_values"), section.texts("in"))
    else {
        return;
    };
    if (min_values as usize) <= values.len() {
        return;
    }
    let detail = format!("min_values is {min_values}, but in has only {} values.", values.len());
    error_at(ProblemCode::OutOfRange, section.value_span("min_values"), detail)
        .also(section.value_span("in"), "")
        .report(section);
}
