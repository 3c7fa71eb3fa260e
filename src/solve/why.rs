//! Why a pod has no answer: for each pool, the first constraint that nothing of the pool satisfies.
//! It must not know how pods were packed, only what was left when they were.

use crate::model::labels::{CAPACITY_TYPE, ZONE};
use crate::model::quantity::display_amount;
use crate::model::requirement::Requirements;
use crate::solve::choose::Ledger;
use crate::solve::problem::{Kind, Problem, clash, times};
use crate::solve::supply::{No, Shape, Shelf, sells};
use crate::solve::{Code, Why};

/// A no of one pool.
type Answer = (Code, String);

/// Why a pool has nothing for a class of pods. Of several alternatives the one that came furthest
/// is told.
pub(super) fn why(problem: &Problem<'_>, shelf: &Shelf<'_>, ledger: &Ledger, class: usize) -> Why {
    let own = &problem.classes[class];
    let kind = &problem.kinds[own.kind];
    let mut furthest: Option<Answer> = None;
    for alternative in &kind.alternatives {
        let answer = match shelf.admit(kind, alternative, true) {
            Err(No::Taint(taint)) => (Code::Taint, format!("does not tolerate {taint}")),
            Err(No::Label(no)) => (Code::Requirements, no.to_string()),
            Ok(labels) => types(problem, (shelf, kind), &labels, (&own.demand, ledger)),
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

fn types(
    problem: &Problem<'_>,
    (shelf, kind): (&Shelf<'_>, &Kind<'_>),
    labels: &Requirements,
    (demand, ledger): (&[i64], &Ledger),
) -> Answer {
    if shelf.shapes.is_empty() {
        let text = "no instance type satisfies the pool's own requirements";
        return (Code::Requirements, text.to_owned());
    }
    let shapes = shelf.shapes.iter();
    let suited: Vec<&Shape<'_>> = shapes.filter(|shape| shape.suits(labels).is_ok()).collect();
    if suited.is_empty() {
        return (Code::Requirements, unsuited(shelf, labels));
    }
    let shapes = suited
        .iter()
        .filter(|shape| !clash(kind.ports, &shape.daemon_ports));
    let free: Vec<&Shape<'_>> = shapes.copied().collect();
    if free.is_empty() {
        let text = "a daemon of every type that suits binds one of its host ports";
        return (Code::Resources, text.to_owned());
    }
    let fits = |shape: &&&Shape<'_>| {
        let net = shape.net.as_ref();
        net.is_some_and(|net| times(net, demand) > 0)
    };
    let fitting: Vec<&Shape<'_>> = free.iter().filter(fits).copied().collect();
    if fitting.is_empty() {
        return (Code::Resources, unfit(problem, &free, demand));
    }
    offers(shelf, &fitting, labels, ledger)
}

/// Which label no type of the pool has as wanted.
fn unsuited(shelf: &Shelf<'_>, labels: &Requirements) -> String {
    for (key, wanted) in labels.iter() {
        let alone: Requirements = [(key, wanted.clone())].into_iter().collect();
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
) -> Answer {
    let sold = |shape: &&&Shape<'_>| shape.offers.iter().any(|offer| sells(labels, offer));
    let sold: Vec<&Shape<'_>> = fitting.iter().filter(sold).copied().collect();
    if sold.is_empty() {
        let held = fitting.iter().flat_map(|shape| {
            let held = shape.held.iter().filter(|offer| sells(labels, offer));
            held.map(|offer| shape.key(offer))
        });
        let mut held: Vec<_> = held.collect();
        held.sort_unstable();
        return match held.first() {
            Some(first) => {
                let count = held.len();
                let text = format!("all {count} offerings that would do are held down: {first}, …");
                (Code::HeldDown, text)
            }
            None => (Code::Offering, unsold(shelf, fitting, labels)),
        };
    }
    let allowed = |shape: &&Shape<'_>| ledger.copies(&shape.limited) > 0;
    if sold.iter().any(allowed) {
        let text = "the step limit of one solve was reached before this pod's turn";
        return (Code::Effort, text.to_owned());
    }
    (Code::Limit, unlimited(shelf, &sold, ledger))
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
