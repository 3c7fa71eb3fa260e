//! Compares requirements and selectors with their plain expressions, as Kubernetes describes them.

use outrigger::model::labels::Labels;
use outrigger::model::requirement::{Operator, Requirement, Requirements};
use outrigger::model::selector::Selector;
use proptest::prelude::{Strategy, any};
use proptest::sample::select;
use proptest::{collection, option, prop_assert_eq, proptest};

use super::rules::{allows, requirements_hold, selector_matches};

const KEYS: &[&str] = &["k", "l"];
const VALUES: &[&str] = &["a", "b", "1", "2", "3", "07", "a1", ""];

/// One expression of a selector, as it is written in a manifest.
#[derive(Clone, Debug)]
struct Expression {
    key: &'static str,
    operator: Operator,
    values: Vec<String>,
}

impl Expression {
    /// Whether it holds for a label with this value, or for an absent label.
    fn holds(&self, value: Option<&String>) -> bool {
        let among = value.is_some_and(|value| self.values.contains(value));
        let number = |text: &String| text.parse::<i64>().ok();
        let compare = |holds: fn(&i64, &i64) -> bool| {
            let sides = value.and_then(number).zip(number(&self.values[0]));
            sides.is_some_and(|(value, bound)| holds(&value, &bound))
        };
        match self.operator {
            Operator::In => among,
            Operator::NotIn => !among,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => compare(i64::gt),
            Operator::Gte => compare(i64::ge),
            Operator::Lt => compare(i64::lt),
            Operator::Lte => compare(i64::le),
        }
    }

    fn requirement(&self) -> Requirement {
        let read = Requirement::from_operator(self.operator, &self.values);
        read.expect("values that fit the operator")
    }
}

fn an_expression() -> impl Strategy<Value = Expression> {
    use Operator::{DoesNotExist, Exists, Gt, Gte, In, Lt, Lte, NotIn};
    let operators = select(&[In, NotIn, Exists, DoesNotExist, Gt, Gte, Lt, Lte][..]);
    let values = collection::vec(select(VALUES).prop_map(ToOwned::to_owned), 1..4);
    (select(KEYS), operators, values, 0i64..4).prop_map(|(key, operator, values, bound)| {
        let values = match operator {
            In | NotIn => values,
            Exists | DoesNotExist => Vec::new(),
            Gt | Gte | Lt | Lte => vec![bound.to_string()],
        };
        Expression { key, operator, values }
    })
}

fn some_labels() -> impl Strategy<Value = Labels> {
    let value = || option::weighted(0.7, select(VALUES));
    (value(), value()).prop_map(|(one, other)| {
        let pair = |(key, value): (&&str, Option<&str>)| Some((key.to_string(), value?.to_owned()));
        KEYS.iter().zip([one, other]).filter_map(pair).collect()
    })
}

/// The requirements of several expressions.
fn together(expressions: &[Expression]) -> Requirements {
    let mut all = Requirements::default();
    for one in expressions {
        all.add(one.key, one.requirement());
    }
    all
}

proptest! {
    #[test]
    fn requirements_hold_exactly_if_their_expressions_hold(
        expressions in collection::vec(an_expression(), 0..5),
        labels in some_labels(),
    ) {
        let plain = expressions.iter().all(|one| one.holds(labels.get(one.key)));
        let wanted = together(&expressions);
        prop_assert_eq!(requirements_hold(&wanted, &labels, &String::new()), plain, "{}", wanted);
        // An existing node has exactly its labels.
        let node = Requirements::from_labels(&labels);
        prop_assert_eq!(node.check_compatible(&wanted, false).is_ok(), plain, "{}", wanted);
    }

    #[test]
    fn intersection_allows_exactly_the_common_values(
        one in collection::vec(an_expression(), 1..4),
        other in collection::vec(an_expression(), 1..4),
        value in option::of(select(VALUES).prop_map(ToOwned::to_owned)),
    ) {
        let merge = |all: &[Expression]| {
            let mut all = all.iter().map(Expression::requirement);
            let first = all.next().expect("an expression");
            all.fold(first, |sum, next| sum.intersection(&next))
        };
        let (one, other) = (merge(&one), merge(&other));
        let both = one.intersection(&other);
        let plain = allows(&one, value.as_ref()) && allows(&other, value.as_ref());
        prop_assert_eq!(allows(&both, value.as_ref()), plain, "{} and {}", one, other);
        let agree = one.has_intersection(&other);
        prop_assert_eq!(agree || value.is_none() || !plain, true, "{} and {}", one, other);
    }

    #[test]
    fn selectors_match_exactly_if_their_expressions_hold(
        expressions in collection::vec(an_expression(), 0..5),
        labels in some_labels(),
        added in any::<bool>(),
    ) {
        let plain = expressions.iter().all(|one| one.holds(labels.get(one.key)));
        let of = |one: &Expression| (one.key.to_owned(), one.requirement());
        let mut selector = Selector::new(expressions.iter().map(of));
        if added {
            selector = Selector::default();
            for one in expressions.iter().rev() {
                selector.add_expression(one.key, one.requirement());
            }
        }
        prop_assert_eq!(selector_matches(Some(&selector), &labels), plain);
        prop_assert_eq!(selector.matches(&labels), plain);
    }
}
