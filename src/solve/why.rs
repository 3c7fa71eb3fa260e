//! Why a pod has no answer: for each pool, the first constraint that nothing of the pool satisfies.
//! It must not know how pods were packed, only what was left when they were.

use crate::model::cluster::MinValuesPolicy;
use crate::model::labels::{CAPACITY_TYPE, NODE_NAME, ZONE, restriction};
use crate::model::quantity::display_amount;
use crate::model::requirement::Requirements;
use crate::solve::axes::times;
use crate::solve::choose::Ledger;
use crate::solve::problem::{Problem, Wants, clash};
use crate::solve::supply::{No, Shape, Shelf, of_types, sells};
use crate::solve::variety::Variety;
use crate::solve::{Code, Why};

/// Rules that are told of one pod; the first few say what to mend.
const RULES_TOLD: usize = 5;

/// A no of one pool.
type Answer = (Code, String);

/// Why a pool has nothing for a class of pods. Of several alternatives the one that came furthest
/// is told.
pub(super) fn why(
    problem: &Problem<'_>,
    shelf: &Shelf<'_>,
    ledger: &Ledger,
    (class, cut_short, min_values): (usize, bool, MinValuesPolicy),
) -> Why {
    let own = &problem.classes[class];
    let kind = problem.wants_of(problem.without_wishes(own.kind));
    let mut furthest: Option<Answer> = None;
    for alternative in &kind.alternatives {
        let answer = match shelf.admit(kind, alternative, true) {
            Err(No::Taint(taint)) => (Code::Taint, format!("does not tolerate {taint}")),
            Err(No::Label(no)) => (Code::Requirements, no.to_string()),
            Ok(labels) => {
                let answer = types(problem, (shelf, kind), &labels, (&own.demand, ledger));
                let variety = Variety::of(shelf, min_values);
                let answer = answer.or_else(|| {
                    let fits = fitting(shelf, &labels, &own.demand, ledger);
                    let (key, least, count) = variety.shortage(shelf, fits.into_iter())?;
                    let text = format!(
                        "{key} wants {least} values in the types that would do; they have {count}"
                    );
                    Some((Code::MinValues, text))
                });
                // What could be had, and yet was not.
                answer.unwrap_or_else(|| unmet(problem, own.kind, cut_short))
            }
        };
        if furthest.as_ref().is_none_or(|(code, _)| answer.0 > *code) {
            furthest = Some(answer);
        }
    }
    let nothing = || {
        (
            Code::Requirements,
            "asks for nothing that can be".to_owned(),
        )
    };
    let (code, text) = furthest.unwrap_or_else(nothing);
    Why {
        pool: Some(shelf.pool.name.clone()),
        code,
        text,
    }
}

/// The label that a class asks for and no new node may be asked for, if that is in every
/// alternative of it. Source: spec/scheduling.md §1.4 (b).
pub(super) fn restricted(problem: &Problem<'_>, class: usize) -> Option<String> {
    let wants = problem.wants_of(problem.without_wishes(problem.classes[class].kind));
    let forbidden = |own: &Requirements| {
        let told = |key: &str| match key {
            NODE_NAME => Some("that node alone could take it".to_owned()),
            key => Some(restriction(key)?.to_owned()),
        };
        let mut found = own
            .iter()
            .filter(|(_, wanted)| !wanted.allows_absence())
            .filter_map(|(key, _)| Some((key.to_owned(), told(key)?)));
        found.next()
    };
    let found: Option<Vec<_>> = wants.alternatives.iter().map(forbidden).collect();
    let (key, why) = found?.into_iter().next()?;
    Some(format!("asks for the label {key}: {why}"))
}

/// The types that a pod fits and that can be had for it.
fn fitting(
    shelf: &Shelf<'_>,
    labels: &Requirements,
    demand: &[i64],
    ledger: &Ledger,
) -> Vec<usize> {
    let asked = of_types(labels);
    let would_do = |at: &usize| {
        let shape = &shelf.shapes[*at];
        let fits = shape.net.as_ref().is_some_and(|net| times(net, demand) > 0);
        fits && shape.suits(&asked).is_ok()
            && shape.offers.iter().any(|offer| sells(labels, offer))
            && ledger.copies(&shape.limited) > 0
    };
    (0..shelf.shapes.len()).filter(would_do).collect()
}

fn types(
    problem: &Problem<'_>,
    (shelf, kind): (&Shelf<'_>, &Wants<'_>),
    labels: &Requirements,
    (demand, ledger): (&[i64], &Ledger),
) -> Option<Answer> {
    if shelf.shapes.is_empty() {
        let text = "no instance type satisfies the pool's own requirements";
        return Some((Code::Requirements, text.to_owned()));
    }
    let shapes = shelf.shapes.iter();
    let asked = of_types(labels);
    let suited: Vec<&Shape<'_>> = shapes.filter(|shape| shape.suits(&asked).is_ok()).collect();
    if suited.is_empty() {
        return Some((Code::Requirements, unsuited(shelf, labels)));
    }
    let shapes = suited
        .iter()
        .filter(|shape| !clash(kind.ports, &shape.daemon_ports));
    let free: Vec<&Shape<'_>> = shapes.copied().collect();
    if free.is_empty() {
        let text = "a daemon of every type that suits binds one of its host ports";
        return Some((Code::Resources, text.to_owned()));
    }
    let fits = |shape: &&&Shape<'_>| {
        let net = shape.net.as_ref();
        net.is_some_and(|net| times(net, demand) > 0)
    };
    let fitting: Vec<&Shape<'_>> = free.iter().filter(fits).copied().collect();
    if fitting.is_empty() {
        return Some((Code::Resources, unfit(problem, &free, demand)));
    }
    offers(shelf, &fitting, labels, ledger)
}

/// Which label no type of the pool has as wanted.
fn unsuited(shelf: &Shelf<'_>, labels: &Requirements) -> String {
    for (key, wanted) in labels.iter() {
        let alone: Requirements = [(key, wanted.clone())].into_iter().collect();
        let alone = of_types(&alone);
        if !shelf.shapes.iter().any(|shape| shape.suits(&alone).is_ok()) {
            return format!("{key}: wanted {wanted}, which no instance type of the pool has");
        }
    }
    format!("no instance type of the pool is all of this: {labels}")
}

/// Which resource is short, how much is wanted, and how much there is at most.
fn unfit(problem: &Problem<'_>, shapes: &[&Shape<'_>], demand: &[i64]) -> String {
    for (axis, wanted) in demand.iter().enumerate() {
        let mut rest = demand.to_vec();
        rest[axis] = 0;
        let amount = |shape: &&&Shape<'_>| shape.net.as_ref().map_or(0, |net| net[axis]);
        let fits = |shape: &&&Shape<'_>| {
            let net = shape.net.as_ref();
            net.is_some_and(|net| times(net, &rest) > 0)
        };
        // Types come by name; of two with as much the first is told.
        let largest = shapes.iter().filter(fits).rev().max_by_key(amount);
        if let Some(largest) = largest {
            let name = problem.axes.name(axis);
            let (wanted, amount) = (shown(name, *wanted), shown(name, amount(&largest)));
            let largest = &largest.instance_type.name;
            return format!(
                "needs {name} {wanted}; the largest type that fits the rest, {largest}, \
                 has {amount}"
            );
        }
    }
    let asked = demand.iter().enumerate().filter(|(_, wanted)| **wanted > 0);
    let asked = asked.map(|(axis, wanted)| {
        let name = problem.axes.name(axis);
        format!("{name} {}", shown(name, *wanted))
    });
    let asked: Vec<String> = asked.collect();
    format!("no type has {} beside its daemons", asked.join(", "))
}

/// An amount as people write it, cores as decimals.
fn shown(name: &str, amount: i64) -> String {
    if name != "cpu" || amount % 1000 == 0 {
        return display_amount(name, amount);
    }
    let (whole, rest) = (amount / 1000, (amount % 1000).abs());
    format!("{whole}.{rest:03}")
        .trim_end_matches('0')
        .to_owned()
}

/// The types fit: whether they are sold, not held down, and within the limits.
fn offers(
    shelf: &Shelf<'_>,
    fitting: &[&Shape<'_>],
    labels: &Requirements,
    ledger: &Ledger,
) -> Option<Answer> {
    let sold = |shape: &&&Shape<'_>| shape.offers.iter().any(|offer| sells(labels, offer));
    let sold: Vec<&Shape<'_>> = fitting.iter().filter(sold).copied().collect();
    if sold.is_empty() {
        let held = fitting.iter().flat_map(|shape| {
            let held = shape.held.iter().filter(|offer| sells(labels, offer));
            held.map(|offer| shape.key(offer))
        });
        let mut held: Vec<_> = held.collect();
        held.sort_unstable();
        return Some(match held.first() {
            Some(first) => {
                let count = held.len();
                let text = format!("all {count} offerings that would do are held down: {first}, …");
                (Code::HeldDown, text)
            }
            None => (Code::Offering, unsold(shelf, fitting, labels)),
        });
    }
    let allowed = |shape: &&Shape<'_>| ledger.copies(&shape.limited) > 0;
    if sold.iter().any(allowed) {
        return None;
    }
    Some((Code::Limit, unlimited(shelf, &sold, ledger)))
}

/// Which rules about other pods keep a pod from what the pool could make.
fn unmet(problem: &Problem<'_>, kind: usize, cut_short: bool) -> Answer {
    let rules = problem.rules_of(problem.without_wishes(kind));
    if cut_short || rules.is_empty() {
        let text = "the step limit of one solve was reached before this pod's turn";
        return (Code::Effort, text.to_owned());
    }
    let key = |key: &usize| problem.groups.keys[*key].as_str();
    let mut told = Vec::new();
    for near in &rules.near {
        let keys: Vec<&str> = near.keys.iter().map(key).collect();
        told.push(format!("affinity by {}", keys.join(" and ")));
    }
    for away in &rules.away {
        told.push(format!("anti-affinity by {}", key(&away.key)));
    }
    for even in &rules.even {
        let (key, skew) = (key(&even.key), even.skew);
        told.push(format!("spread over {key} with a skew of {skew} at most"));
    }
    told.dedup();
    told.truncate(RULES_TOLD);
    let text = format!(
        "nodes could be made, but none where its rules hold: {}",
        told.join("; ")
    );
    (Code::Topology, text)
}

fn unsold(shelf: &Shelf<'_>, fitting: &[&Shape<'_>], labels: &Requirements) -> String {
    let first = &fitting[0].instance_type.name;
    let wanted = [ZONE, CAPACITY_TYPE].into_iter().filter_map(|key| {
        let wanted = labels.get(key).or_else(|| shelf.side.get(key))?;
        Some(format!("{key} {wanted}"))
    });
    let wanted: Vec<String> = wanted.collect();
    let count = fitting.len();
    format!(
        "{count} types fit ({first}, …), but none is offered with {}",
        wanted.join(", ")
    )
}

/// Which limit is in the way of the type that takes least of it.
fn unlimited(shelf: &Shelf<'_>, sold: &[&Shape<'_>], ledger: &Ledger) -> String {
    let short = |shape: &&Shape<'_>| {
        let (at, left) = ledger.shortage(&shape.limited)?;
        Some((at, shape.limited[at], left))
    };
    let Some((at, least, left)) = sold.iter().filter_map(short).min() else {
        let most = shelf.pool.limits.nodes.unwrap_or(0);
        return format!("nodes limit {most} is reached");
    };
    let (name, most) = &shelf.pool.limits.capacity[at];
    let (most, left, least) = (shown(name, *most), shown(name, left), shown(name, least));
    format!("{name} limit {most} leaves {left}, the smallest fitting type has {least}")
}
