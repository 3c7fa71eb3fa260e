//! Taints of nodes and tolerations of pods.

use std::cmp::Ordering;
use std::fmt;

use crate::model::labels::TAINT_UNREGISTERED;
use crate::model::named_enum::named_enum;

/// Key of the taint of a node whose kubelet does not report, including a kubelet that has not
/// joined yet.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

named_enum! {
    /// The effect of a taint on pods that do not tolerate it. The names are those of Kubernetes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Effect {
        /// New pods are not scheduled on the node.
        NoSchedule => "NoSchedule",
        /// New pods are not scheduled on the node if another node is available.
        PreferNoSchedule => "PreferNoSchedule",
        /// New pods are not scheduled on the node, and running pods are evicted.
        NoExecute => "NoExecute",
    }
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    /// The key.
    pub key: String,
    /// The value. Empty if there is none.
    pub value: String,
    /// The effect.
    pub effect: Effect,
}

impl Taint {
    /// A taint without a value.
    pub fn new(key: &str, effect: Effect) -> Self {
        Self { key: key.to_owned(), value: String::new(), effect }
    }

    /// Returns whether Kubernetes treats two taints as identical: their keys and effects are equal.
    pub fn matches(&self, other: &Self) -> bool {
        self.key == other.key && self.effect == other.effect
    }

    /// Returns whether the taint is removed automatically while a node starts. Source:
    /// spec/scheduling.md §1.5 (known ephemeral taints).
    pub fn is_ephemeral(&self) -> bool {
        match (self.key.as_str(), self.effect) {
            ("node.kubernetes.io/not-ready", Effect::NoSchedule | Effect::NoExecute)
            | (UNREACHABLE, Effect::NoSchedule) => true,
            ("node.cloudprovider.kubernetes.io/uninitialized", Effect::NoSchedule) => {
                self.value == "true"
            }
            (TAINT_UNREGISTERED, Effect::NoExecute | Effect::NoSchedule) => true,
            (key, _) => key.starts_with("readiness.k8s.io/"),
        }
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{}", self.key, self.value, self.effect.as_str())
    }
}

/// How a toleration compares a taint's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TolerationOperator {
    /// The values are equal.
    Equal,
    /// Any value matches.
    Exists,
    /// The taint's value is an integer below the toleration's.
    Lt,
    /// The taint's value is an integer above the toleration's.
    Gt,
}

/// A toleration of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Toleration {
    /// The key; empty (with `Exists`) tolerates every key.
    pub key: String,
    /// The value comparison.
    pub operator: TolerationOperator,
    /// The value.
    pub value: String,
    /// The effect. `None` tolerates every effect.
    pub effect: Option<Effect>,
}

impl Toleration {
    /// Returns whether this toleration matches the taint. Source: Kubernetes, taints and
    /// tolerations.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        if self.effect.is_some_and(|effect| effect != taint.effect) {
            return false;
        }
        if self.key.is_empty() {
            return self.operator == TolerationOperator::Exists;
        }
        self.key == taint.key
            && match self.operator {
                TolerationOperator::Exists => true,
                TolerationOperator::Equal => self.value == taint.value,
                TolerationOperator::Lt => compare_values(taint, self) == Some(Ordering::Less),
                TolerationOperator::Gt => compare_values(taint, self) == Some(Ordering::Greater),
            }
    }
}

/// Compares the value of a taint with that of a toleration. `None` if one is not an integer.
fn compare_values(taint: &Taint, toleration: &Toleration) -> Option<Ordering> {
    Some(parse_integer(&taint.value)?.cmp(&parse_integer(&toleration.value)?))
}

/// Parses an integer. `None` if it has a plus sign or a leading zero. Source: Kubernetes,
/// `content.IsDecimalInteger`.
fn parse_integer(value: &str) -> Option<i64> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let is_plain = value == "0" || digits.starts_with(|first| ('1'..='9').contains(&first));
    is_plain.then(|| value.parse().ok()).flatten()
}

/// The first taint that prevents pods with these tolerations from being scheduled. A
/// `PreferNoSchedule` taint does not prevent it.
pub fn first_repelling<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    first_untolerated(
        taints.iter().filter(|taint| taint.effect != Effect::PreferNoSchedule),
        tolerations,
    )
}

/// The first taint that no toleration matches.
pub fn first_untolerated<'a>(
    taints: impl IntoIterator<Item = &'a Taint>,
    tolerations: &[Toleration],
) -> Option<&'a Taint> {
    taints
        .into_iter()
        .find(|taint| !tolerations.iter().any(|toleration| toleration.tolerates(taint)))
}

#[cfg(test)]
mod tests {
    use super::{Effect, Taint, Toleration, TolerationOperator};

    /// Values of the taint and of the toleration, and whether it is tolerated with `Lt` and with
    /// `Gt`.
    #[test]
    fn taint_comparison_accepts_only_canonical_integers() {
        for (tainted, tolerated, by_lt, by_gt) in [
            ("5", "6", true, false),
            ("5", "5", false, false),
            ("5", "-4", false, true),
            ("0", "1", true, false),
            ("05", "6", false, false),
            ("5", "06", false, false),
            ("5", "+6", false, false),
            ("5", "-0", false, false),
            ("5", "", false, false),
            ("x", "6", false, false),
            ("5", "9223372036854775808", false, false),
        ] {
            let taint = Taint { value: tainted.to_owned(), ..Taint::new("k", Effect::NoSchedule) };
            let results = [TolerationOperator::Lt, TolerationOperator::Gt].map(|operator| {
                let toleration = Toleration {
                    key: "k".to_owned(),
                    operator,
                    value: tolerated.to_owned(),
                    effect: None,
                };
                toleration.tolerates(&taint)
            });
            assert_eq!(results, [by_lt, by_gt], "{tainted} {tolerated}");
        }
    }
}
