//! Label requirements, their intersection and their compatibility.
//!
//! The algebra is that of spec/scheduling.md §2.2: `In` holds a set, every other operator holds the
//! complement of a set, and bounds narrow either kind of set.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use thiserror::Error;

use crate::model::labels::{Labels, is_well_known, normalized_key, suggested_label};

/// A requirement operator of Kubernetes and Karpenter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The label is an integer above the value.
    Gt,
    /// The label is an integer of at least the value.
    Gte,
    /// The label is an integer below the value.
    Lt,
    /// The label is an integer of at most the value.
    Lte,
}

/// Why an operator cannot have these values.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct OperatorError(String);

/// The value of a comparison.
fn comparison_value(operator: Operator, values: &[String]) -> Result<i64, OperatorError> {
    let [value] = values else {
        return Err(OperatorError(format!("{operator:?} wants exactly one value")));
    };
    let parsed = value.parse();
    parsed.map_err(|_| OperatorError(format!("{operator:?} wants an integer, not {value:?}")))
}

/// The allowed values of one label.
///
/// Whether the label must be present is stored separately from the set: a node without the label
/// does not satisfy `Exists` and `NotIn a` combined. Karpenter does not track this; the scheduler
/// does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    complement: bool,
    present: bool,
    values: BTreeSet<String>,
    gte: Option<i64>,
    lte: Option<i64>,
    /// Minimum number of distinct values of this label among the selected instance types.
    pub min_values: Option<u32>,
}

impl Requirement {
    /// The label is one of `values`.
    pub fn is_in<S: Into<String>>(values: impl IntoIterator<Item = S>) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        Self { complement: false, present: true, values, gte: None, lte: None, min_values: None }
    }

    /// The label has none of `values`.
    pub fn not_in<S: Into<String>>(values: impl IntoIterator<Item = S>) -> Self {
        Self { complement: true, present: false, ..Self::is_in(values) }
    }

    /// The label is present.
    pub fn exists() -> Self {
        Self { present: true, ..Self::not_in::<String>([]) }
    }

    /// The label is absent.
    pub fn does_not_exist() -> Self {
        Self { present: false, ..Self::is_in::<String>([]) }
    }

    /// The label is present and has no value: nothing satisfies the requirement.
    pub fn impossible() -> Self {
        Self::is_in::<String>([])
    }

    /// Returns whether nothing satisfies the requirement, neither a value nor the absence of the
    /// label.
    pub fn is_impossible(&self) -> bool {
        self.present && !self.complement && self.values.is_empty()
    }

    /// The label is an integer within the inclusive bounds. Labels cannot be negative because a
    /// value cannot begin with a sign.
    pub fn between(gte: Option<i64>, lte: Option<i64>) -> Self {
        let gte = gte.map(|low| low.max(0));
        if lte.is_some_and(|high| high < gte.unwrap_or(0)) {
            return Self::impossible();
        }
        Self { gte, lte, ..Self::exists() }
    }

    /// Creates a requirement from an operator and its values. Returns an error for invalid values:
    /// `In` requires at least one value, comparisons exactly one integer. Karpenter rejects
    /// negative integers, which Kubernetes accepts.
    pub fn from_operator(operator: Operator, values: &[String]) -> Result<Self, OperatorError> {
        Ok(match operator {
            Operator::In if values.is_empty() => {
                return Err(OperatorError("In wants at least one value".to_owned()));
            }
            Operator::In => Self::is_in(values.iter().cloned()),
            Operator::NotIn => Self::not_in(values.iter().cloned()),
            Operator::Exists => Self::exists(),
            Operator::DoesNotExist => Self::does_not_exist(),
            Operator::Gt => match comparison_value(operator, values)?.checked_add(1) {
                Some(gte) => Self::between(Some(gte), None),
                None => Self::impossible(),
            },
            Operator::Gte => Self::between(Some(comparison_value(operator, values)?), None),
            Operator::Lt => {
                Self::between(None, Some(comparison_value(operator, values)?.saturating_sub(1)))
            }
            Operator::Lte => Self::between(None, Some(comparison_value(operator, values)?)),
        })
    }

    /// The equivalent operator: `In`, `NotIn`, `Exists` (also with bounds) or `DoesNotExist`. An
    /// impossible requirement is `DoesNotExist`. Excluded values of a required label are `NotIn`.
    pub fn operator(&self) -> Operator {
        match (self.complement, self.values.is_empty()) {
            (true, true) if self.present => Operator::Exists,
            (true, _) => Operator::NotIn,
            (false, true) => Operator::DoesNotExist,
            (false, false) => Operator::In,
        }
    }

    /// Returns whether an absent label satisfies the requirement.
    pub fn allows_absence(&self) -> bool {
        !self.present
    }

    /// Returns whether the label may have this value.
    pub fn allows_value(&self, value: &str) -> bool {
        self.values.contains(value) != self.complement && self.is_within_bounds(value)
    }

    /// Returns whether the label may have this value. `None` means that the label is absent.
    pub fn allows_label(&self, value: Option<&str>) -> bool {
        value.map_or(self.allows_absence(), |value| self.allows_value(value))
    }

    /// The values of an `In` requirement. `None` if the requirement excludes values.
    pub fn values(&self) -> Option<&BTreeSet<String>> {
        (!self.complement).then_some(&self.values)
    }

    /// The excluded values. `None` if the requirement lists allowed values.
    pub fn excluded_values(&self) -> Option<&BTreeSet<String>> {
        self.complement.then_some(&self.values)
    }

    /// The inclusive integer bounds of the label's value.
    pub fn bounds(&self) -> (Option<i64>, Option<i64>) {
        (self.gte, self.lte)
    }

    /// Returns the requirement that is satisfied exactly if this one is not. `None` if it has
    /// bounds.
    pub fn negated(&self) -> Option<Self> {
        (self.gte.is_none() && self.lte.is_none()).then(|| Self {
            complement: !self.complement,
            present: !self.present,
            min_values: None,
            ..self.clone()
        })
    }

    /// A value that the label may have. `None` if the label may be absent.
    pub fn any_value(&self) -> Option<String> {
        if self.allows_absence() {
            return None;
        }
        if !self.complement {
            return self.values.iter().next().cloned();
        }
        // With one more candidate than excluded values, at least one candidate is allowed.
        let count = self.values.len() + 1;
        if self.gte.is_none() && self.lte.is_none() {
            return std::iter::once("true".to_owned())
                .chain((0..).map(|number: u64| number.to_string()))
                .take(count)
                .find(|value| !self.values.contains(value));
        }
        let (low, high) = (self.gte.unwrap_or(0), self.lte.unwrap_or(i64::MAX));
        let plain = (low..=high).map(|number| number.to_string());
        let padded = (1..).map(|zeros| format!("{}{low}", "0".repeat(zeros)));
        plain.take(count).chain(padded.take(count)).find(|value| !self.values.contains(value))
    }

    fn is_within_bounds(&self, value: &str) -> bool {
        if self.gte.is_none() && self.lte.is_none() {
            return true;
        }
        value.parse::<i64>().is_ok_and(|number| {
            self.gte.is_none_or(|low| number >= low) && self.lte.is_none_or(|high| number <= high)
        })
    }

    /// The inclusive bounds that are within the bounds of both requirements. `None` if no integer
    /// is within both.
    fn common_bounds(&self, other: &Self) -> Option<(Option<i64>, Option<i64>)> {
        let gte = self.gte.max(other.gte);
        let lte = [self.lte, other.lte].into_iter().flatten().min();
        let is_empty = gte.zip(lte).is_some_and(|(low, high)| low > high);
        (!is_empty).then_some((gte, lte))
    }

    /// Returns the requirement that is satisfied exactly if both requirements are satisfied.
    pub fn intersection(&self, other: &Self) -> Self {
        let min_values = self.min_values.max(other.min_values);
        let Some((gte, lte)) = self.common_bounds(other) else {
            return Self { min_values, ..Self::impossible() };
        };
        let complement = self.complement && other.complement;
        let values: BTreeSet<String> = match (self.complement, other.complement) {
            (true, true) => self.values.union(&other.values).cloned().collect(),
            (false, true) => self.values.difference(&other.values).cloned().collect(),
            (true, false) => other.values.difference(&self.values).cloned().collect(),
            (false, false) => self.values.intersection(&other.values).cloned().collect(),
        };
        let mut intersection = Self {
            complement,
            present: self.present || other.present,
            values,
            gte,
            lte,
            min_values,
        };
        let bounds = Self::between(gte, lte);
        intersection.values.retain(|value| bounds.is_within_bounds(value));
        if !complement {
            (intersection.gte, intersection.lte) = (None, None);
        }
        intersection
    }

    /// Returns whether a value of a present label satisfies both requirements.
    pub fn has_intersection(&self, other: &Self) -> bool {
        if self.common_bounds(other).is_none() {
            return false;
        }
        match (self.complement, other.complement) {
            (true, true) => true,
            (false, _) => self
                .values
                .iter()
                .any(|value| self.is_within_bounds(value) && other.allows_value(value)),
            (true, false) => other
                .values
                .iter()
                .any(|value| other.is_within_bounds(value) && self.allows_value(value)),
        }
    }
}

impl fmt::Display for Requirement {
    /// Writes `in [a, b]`, `exists but not in [a]`, `not in [7] and >= 3 and <= 9`. Lists are cut
    /// after five values (spec §2.2).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_MAX: usize = 5;
        if self.is_impossible() {
            return f.write_str("what cannot be");
        }
        let bounded = self.gte.is_some() || self.lte.is_some();
        let mut prefix = match self.operator() {
            Operator::In => "in ",
            Operator::NotIn if self.present && !bounded => "exists but not in ",
            Operator::NotIn if self.values.is_empty() => "anything",
            Operator::NotIn => "not in ",
            Operator::DoesNotExist => "does not exist",
            _ if bounded => "",
            _ => "exists",
        };
        f.write_str(prefix)?;
        if !self.values.is_empty() {
            let shown = self.values.iter().take(SHOWN_MAX).map(String::as_str);
            write!(f, "[{}", shown.collect::<Vec<_>>().join(", "))?;
            match self.values.len().saturating_sub(SHOWN_MAX) {
                0 => f.write_str("]")?,
                rest => write!(f, " and {rest} others]")?,
            }
        }
        for (sign, bound) in [(">=", self.gte), ("<=", self.lte)] {
            if let Some(bound) = bound {
                let and = if prefix.is_empty() { "" } else { " and " };
                write!(f, "{and}{sign} {bound}")?;
                prefix = sign;
            }
        }
        match self.min_values {
            Some(min_values) => write!(f, " (min_values {min_values})"),
            None => Ok(()),
        }
    }
}

/// Why two sets of requirements are incompatible. The message is only formatted when it is
/// displayed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Incompatible {
    /// The label.
    pub key: String,
    sides: Box<Sides>,
}

/// Both sides of an incompatible label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sides {
    /// The required values.
    wanted: Requirement,
    /// The offered values. `None` if the label is not defined.
    offered: Option<Requirement>,
    /// Defined labels, other than well-known labels, of which the key may be a misspelling.
    known: Vec<String>,
}

impl Incompatible {
    fn new(
        key: &str,
        wanted: &Requirement,
        offered: Option<&Requirement>,
        known: Vec<String>,
    ) -> Self {
        let sides = Sides { wanted: wanted.clone(), offered: offered.cloned(), known };
        Self { key: key.to_owned(), sides: Box::new(sides) }
    }

    /// The required values of the label.
    pub fn wanted(&self) -> &Requirement {
        &self.sides.wanted
    }

    /// The offered values of the label. `None` if the label is not defined.
    pub fn offered(&self) -> Option<&Requirement> {
        self.sides.offered.as_ref()
    }
}

impl fmt::Display for Incompatible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sides { wanted, offered, known } = &*self.sides;
        write!(f, "{}: wanted {wanted}", self.key)?;
        if wanted.is_impossible() {
            return Ok(());
        }
        match offered {
            Some(offered) => write!(f, ", offered {offered}"),
            None => {
                f.write_str(", but the label is not defined here")?;
                match suggested_label(&self.key, known.iter().map(String::as_str)) {
                    Some(other) => write!(f, "; did you mean {other}?"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Requirements on several labels, all of which must be satisfied. Keys are normalized when added.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirements {
    by_key: BTreeMap<String, Requirement>,
}

impl Requirements {
    /// Requirements that only these label values satisfy.
    pub fn from_labels(labels: &Labels) -> Self {
        labels
            .iter()
            .map(|(key, value)| (key.as_str(), Requirement::is_in([value.as_str()])))
            .collect()
    }

    /// Adds a requirement on a label.
    pub fn add(&mut self, key: &str, requirement: Requirement) {
        let key = normalized_key(key);
        match self.by_key.get_mut(key) {
            Some(existing) => *existing = existing.intersection(&requirement),
            None => drop(self.by_key.insert(key.to_owned(), requirement)),
        }
    }

    /// Adds all requirements of `other`.
    pub fn add_all(&mut self, other: &Self) {
        for (key, requirement) in &other.by_key {
            self.add(key, requirement.clone());
        }
    }

    /// Returns these requirements with all requirements of `other` added.
    #[must_use]
    pub fn merged_with(&self, other: &Self) -> Self {
        let mut merged = self.clone();
        merged.add_all(other);
        merged
    }

    /// The requirement on a label, if any.
    pub fn get(&self, key: &str) -> Option<&Requirement> {
        self.by_key.get(key)
    }

    /// All requirements by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Requirement)> {
        self.by_key.iter().map(|(key, requirement)| (key.as_str(), requirement))
    }

    /// Returns whether there is no requirement.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Checks that, for every label that both sides name, a value satisfies both.
    pub fn check_intersection(&self, incoming: &Self) -> Result<(), Incompatible> {
        for (key, wanted) in &incoming.by_key {
            let offered = self.by_key.get(key);
            if wanted.is_impossible()
                || !offered.is_none_or(|offered| {
                    offered.has_intersection(wanted)
                        || (wanted.allows_absence() && offered.allows_absence())
                })
            {
                return Err(Incompatible::new(key, wanted, offered, Vec::new()));
            }
        }
        Ok(())
    }

    /// Checks that a node with these requirements satisfies `incoming`. A label that this side does
    /// not define is an error, unless it is well-known and `well_known_undefined` is set (for a
    /// node that does not exist yet).
    pub fn check_compatible(
        &self,
        incoming: &Self,
        well_known_undefined: bool,
    ) -> Result<(), Incompatible> {
        for (key, wanted) in &incoming.by_key {
            if self.by_key.contains_key(key)
                || wanted.allows_absence()
                || (well_known_undefined && is_well_known(key))
            {
                continue;
            }
            // Suggestions are only needed for pools. Thousands of nodes are checked without them.
            let keys = self.by_key.keys();
            let known = keys.filter(|key| well_known_undefined && !is_well_known(key));
            let known = known.cloned().collect();
            return Err(Incompatible::new(key, wanted, None, known));
        }
        self.check_intersection(incoming)
    }
}

impl<'a> FromIterator<(&'a str, Requirement)> for Requirements {
    fn from_iter<T: IntoIterator<Item = (&'a str, Requirement)>>(iter: T) -> Self {
        let mut requirements = Self::default();
        for (key, requirement) in iter {
            requirements.add(key, requirement);
        }
        requirements
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (key, requirement) in &self.by_key {
            write!(f, "{separator}{key} {requirement}")?;
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Operator, Requirement, Requirements};

    fn requirement(text: &str) -> Requirement {
        match text.split_once(' ').unwrap_or((text, "")) {
            ("exists", _) => Requirement::exists(),
            ("absent", _) => Requirement::does_not_exist(),
            ("in", values) => Requirement::is_in(values.split(',')),
            ("not", values) => Requirement::not_in(values.split(',')),
            ("gt", n) => {
                Requirement::from_operator(Operator::Gt, &[n.to_owned()]).expect("an integer")
            }
            other => panic!("{other:?}"),
        }
    }

    /// The compatibility table of spec/scheduling.md §2.2: rows are the node's side, columns the
    /// pod's.
    #[test]
    fn compatibility_follows_the_truth_table() {
        let sides = ["", "exists", "absent", "in A", "not A", "gt 1"];
        let table = [
            ("custom", "", "ynynyn"),
            ("karpenter.sh/capacity-type", "", "yyyyyy"),
            ("custom", "exists", "yynyyy"),
            ("custom", "absent", "ynynyn"),
            ("custom", "in A", "yynynn"),
            ("custom", "not A", "yyynyy"),
            ("custom", "gt 1", "yynnyy"),
        ];
        for (key, node, row) in table {
            for (pod, expect) in sides.iter().zip(row.chars()) {
                let side = |text: &str| -> Requirements {
                    (!text.is_empty()).then(|| (key, requirement(text))).into_iter().collect()
                };
                let got = side(node).check_compatible(&side(pod), true).is_ok();
                assert_eq!(got, expect == 'y', "node {node:?} pod {pod:?} key {key}");
            }
        }
    }

    #[test]
    fn bounds_drop_values_outside_them() {
        let both = requirement("in 1,5,x").intersection(&requirement("gt 2"));
        assert_eq!(both, Requirement::is_in(["5"]));
        let none =
            Requirement::between(Some(3), None).intersection(&Requirement::between(None, Some(2)));
        assert!(none.is_impossible());
    }

    #[test]
    fn operators_refuse_values_they_cannot_use() {
        let refused: [(Operator, &[&str]); 4] = [
            (Operator::In, &[]),
            (Operator::Gt, &["1.5"]),
            (Operator::Lte, &["1", "2"]),
            (Operator::Lt, &["x"]),
        ];
        for (operator, values) in refused {
            let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
            assert!(Requirement::from_operator(operator, &values).is_err());
        }
    }
}
