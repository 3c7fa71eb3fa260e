//! Label selectors, which match existing labels.
//!
//! Requirements narrow the values that a label may get. A selector matches labels that are set: no
//! key is renamed, and contradictory expressions select nothing.

use crate::model::labels::Labels;
use crate::model::requirement::Requirement;

/// A Kubernetes label selector. All expressions must match. A selector without expressions selects
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector {
    expressions: Vec<(String, Requirement)>,
}

impl Selector {
    /// Creates a selector from expressions in any order.
    pub fn new(expressions: impl IntoIterator<Item = (String, Requirement)>) -> Self {
        let mut expressions: Vec<(String, Requirement)> = expressions.into_iter().collect();
        expressions.sort_unstable();
        expressions.dedup();
        Self { expressions }
    }

    /// Creates a selector for exactly these labels.
    pub fn from_labels(labels: &Labels) -> Self {
        Self::new(
            labels.iter().map(|(key, value)| (key.clone(), Requirement::is_in([value.as_str()]))),
        )
    }

    /// Adds an expression.
    pub fn add_expression(&mut self, key: &str, requirement: Requirement) {
        let expression = (key.to_owned(), requirement);
        if let Err(at) = self.expressions.binary_search(&expression) {
            self.expressions.insert(at, expression);
        }
    }

    /// Its expressions, sorted.
    pub fn expressions(&self) -> &[(String, Requirement)] {
        &self.expressions
    }

    /// Returns whether the expressions contradict each other, so that the selector matches nothing.
    pub fn is_impossible(&self) -> bool {
        // Expressions on one key are adjacent.
        let mut expressions = self.expressions.chunk_by(|a, b| a.0 == b.0);
        expressions.any(|of_key| {
            let mut requirements = of_key.iter().map(|expression| &expression.1);
            let first = requirements.next().cloned();
            first.is_some_and(|intersection| {
                requirements.fold(intersection, |a, b| a.intersection(b)).is_impossible()
            })
        })
    }

    /// Returns whether the selector matches these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.expressions.iter().all(|(key, wanted)| match labels.get(key) {
            Some(value) => wanted.allows_value(value),
            None => wanted.allows_absence(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Selector;
    use crate::model::labels::Labels;
    use crate::model::requirement::Requirement;

    #[test]
    fn selector_matches_only_if_every_expression_holds() {
        let labels = Labels::from([("app".to_owned(), "a".to_owned())]);
        let of = |list: &[(&str, Requirement)]| {
            Selector::new(list.iter().map(|(key, it)| ((*key).to_owned(), it.clone())))
        };
        let cases = [
            (of(&[]), true),
            (of(&[("app", Requirement::is_in(["a", "b"]))]), true),
            (of(&[("app", Requirement::is_in(["b"]))]), false),
            (of(&[("app", Requirement::exists())]), true),
            (of(&[("app", Requirement::does_not_exist())]), false),
            (of(&[("tier", Requirement::exists())]), false),
            (of(&[("tier", Requirement::does_not_exist())]), true),
            (of(&[("tier", Requirement::not_in(["x"]))]), true),
            (of(&[("app", Requirement::not_in(["a"]))]), false),
            // Combined, they allow no value and no absent label.
            (
                of(&[("tier", Requirement::is_in(["x"])), ("tier", Requirement::is_in(["y"]))]),
                false,
            ),
        ];
        for (selector, expect) in cases {
            assert_eq!(selector.matches(&labels), expect, "{selector:?}");
            assert!(!expect || !selector.is_impossible(), "{selector:?}");
        }
    }

    #[test]
    fn contradictory_selector_is_impossible() {
        let of = |list: &[Requirement]| {
            let app = list.iter().map(|app| ("app".to_owned(), app.clone()));
            let tier = ("tier".to_owned(), Requirement::exists());
            Selector::new(app.chain([tier]))
        };
        let (a, b) = (Requirement::is_in(["a"]), Requirement::is_in(["b"]));
        let (exists, absent) = (Requirement::exists(), Requirement::does_not_exist());
        let not_a = Requirement::not_in(["a"]);
        let cases = [
            (of(&[]), false),
            (of(std::slice::from_ref(&a)), false),
            (of(&[a.clone(), not_a.clone()]), true),
            (of(&[a.clone(), b.clone()]), true),
            (of(&[b.clone(), not_a.clone(), exists.clone()]), false),
            (of(&[b, absent.clone()]), true),
            (of(&[exists, absent.clone()]), true),
            (of(&[absent, not_a]), false),
        ];
        for (selector, expect) in cases {
            assert_eq!(selector.is_impossible(), expect, "{selector:?}");
        }
    }
}
