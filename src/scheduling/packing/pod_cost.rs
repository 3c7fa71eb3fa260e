//! What pods are worth to whoever packs them, and which types are worth weighing for them.
//! It must not know how nodes are filled.

use std::collections::BTreeMap;

use crate::scheduling::packing::PackingInput;
use crate::scheduling::packing::launch_options::{Ledger, cheapest};
use crate::scheduling::problem::resource_vector::{COMMON, fits, times};

/// Types that are weighed of those with about as much memory for each cpu.
const FRONT_MAX: f64 = 24.0;

/// The counter of which the most hosts are needed, because its pods share none, and how many of
/// them share one.
pub(crate) fn scarce(order: &PackingInput<'_>, dealt: &[usize]) -> Option<(usize, u64)> {
    let mut needed: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for lot in dealt {
        let shares = order.lots[*lot].shares;
        for (counter, most) in &shares.limits {
            if shares.adds.contains(counter) {
                let together = u64::from(*most) + 1;
                let own = needed.entry(*counter).or_insert((0, together));
                own.0 += order.stock[*lot];
                own.1 = own.1.min(together);
            }
        }
    }
    let hosts = |own: &(usize, (u64, u64))| own.1.0 / own.1.1.max(1);
    let most = needed.into_iter().rev().max_by_key(hosts);
    most.map(|(counter, (_, together))| (counter, together))
}

/// The shapes to weigh for each row of these lots. Every lot that fits a shape fits one of them.
pub(crate) fn fronts(
    order: &PackingInput<'_>,
    dealt: &[usize],
    ledger: &Ledger,
) -> BTreeMap<usize, Vec<usize>> {
    let mut whole: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut fronts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for lot in dealt {
        let own = &order.lots[*lot];
        let known = whole.entry(own.row);
        let known = known.or_insert_with(|| front(order, own.row, ledger));
        let some = fronts.entry(own.row);
        let some = some.or_insert_with(|| thinned(order, known));
        let fits = |at: &&usize| {
            let net = order.shelf.shapes[**at].net.as_deref();
            let all = |net| match own.together {
                0 | 1 => fits(net, own.demand),
                together => times(net, own.demand) >= together,
            };
            net.is_some_and(all)
        };
        // Among those that are much alike one that is left out may have more of something.
        if !some.iter().any(|at| fits(&at)) {
            some.extend(known.iter().find(fits));
            some.sort_unstable();
        }
        // There may be variety enough for what it asks for, and not for all that a type has.
        if !order.variety.is_empty() && !some.iter().any(|at| fits(&at)) {
            let pool = (order.shelf, order.variety);
            let alone = cheapest(pool, &[&order.rows[own.row]], own.demand, ledger);
            some.extend(alone.map(|(shape, _)| shape));
            some.sort_unstable();
        }
    }
    fronts
}

/// The shapes of a row that are cheaper than all that have more, or take less of the limits, by
/// price.
fn front(order: &PackingInput<'_>, lane: usize, ledger: &Ledger) -> Vec<usize> {
    let shapes = &order.shelf.shapes;
    let mut priced: Vec<(f64, usize)> = Vec::new();
    for (at, mask) in order.rows[lane].masks.iter().enumerate() {
        if let Some(price) = shapes[at].price(*mask)
            && shapes[at].net.is_some()
            && ledger.copies(&shapes[at].limited) > 0
            && is_varied(order, lane, at, ledger)
        {
            priced.push((price, at));
        }
    }
    priced.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let mut kept: Vec<(&[i64], &[i64])> = Vec::new();
    priced.retain(|(_, at)| {
        let (net, limited) = (shapes[*at].net.as_deref(), &shapes[*at].limited[..]);
        let net = net.unwrap_or_default();
        let mut others = kept.iter();
        let is_beaten = others.any(|(more, less)| fits(more, net) && fits(limited, less));
        if !is_beaten {
            kept.push((net, limited));
        }
        !is_beaten
    });
    priced.into_iter().map(|(_, at)| at).collect()
}

/// Whether enough other types would do for whatever fits a type.
fn is_varied(order: &PackingInput<'_>, lane: usize, shape: usize, ledger: &Ledger) -> bool {
    let shapes = &order.shelf.shapes;
    if order.variety.is_empty() || shapes[shape].reservation.is_some() {
        return true;
    }
    let masks = &order.rows[lane].masks;
    let own = shapes[shape].net.as_deref().unwrap_or_default();
    let as_large = |other: &usize| {
        let net = shapes[*other].net.as_deref().unwrap_or_default();
        masks[*other] != 0
            && shapes[*other].is_like(&shapes[shape])
            && net.iter().zip(own).all(|(net, own)| net >= own)
            && net.len() == own.len()
            && ledger.copies(&shapes[*other].limited) > 0
    };
    let types = (0..shapes.len()).filter(as_large);
    order.variety.has(order.shelf, types)
}

/// Some of these shapes, given by price: of those with about as much memory for each cpu, and as
/// much of what is rare, few that are much alike. Claims are moved to the best of all types once
/// they are packed.
fn thinned(order: &PackingInput<'_>, shapes: &[usize]) -> Vec<usize> {
    let mut alike: BTreeMap<(i64, &[i64]), Vec<usize>> = BTreeMap::new();
    // What is reserved is cheap whatever its size, and gone when it is used up.
    let is_reserved = |at: &usize| order.shelf.shapes[*at].reservation.is_some();
    let (mut kept, bought): (Vec<usize>, Vec<usize>) =
        shapes.iter().partition(|at| is_reserved(at));
    for at in bought {
        let net = order.shelf.shapes[at].net.as_deref().unwrap_or_default();
        // In steps of a quarter of a doubling.
        let [cpu, memory] = [0, 1].map(|axis| {
            let amount = net.get(axis).copied().unwrap_or(0).max(1);
            #[expect(clippy::cast_precision_loss, reason = "only to tell what is alike")]
            let amount = amount as f64;
            amount
        });
        #[expect(clippy::cast_possible_truncation, reason = "a logarithm is small")]
        let ratio = (4.0 * (memory / cpu).log2()).round() as i64;
        let rare = net.get(COMMON..).unwrap_or_default();
        alike.entry((ratio, rare)).or_default().push(at);
    }
    for shapes in alike.into_values() {
        let size = |at: &usize| {
            let net = order.shelf.shapes[*at].net.as_deref().unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "only to tell what is alike")]
            let cpu = net.first().copied().unwrap_or(0).max(1) as f64;
            cpu
        };
        let sizes = shapes.iter().map(size);
        let (least, most) = sizes.fold((f64::INFINITY, 1.0), |(least, most), own| {
            (f64::min(least, own), f64::max(most, own))
        });
        let step = (most / least).powf(1.0 / FRONT_MAX);
        let mut next = 0.0;
        for at in &shapes {
            let own = size(at);
            // A step is wider than rounding is coarse.
            if own >= next * 0.999_999 || own >= most {
                kept.push(*at);
                next = own * step;
            }
        }
    }
    kept.sort_unstable();
    kept
}

/// The least that one pod of a row and a demand can cost as one of many, where at most `most` share
/// a host. Zero where it fits nowhere. Where hosts are made for the sake of pods that share none,
/// such a pod costs a host. What is reserved costs next to nothing for some and says nothing about
/// the others: it counts only for pods that nothing else would do for.
pub(crate) fn worth_of(
    order: &PackingInput<'_>,
    fronts: &BTreeMap<usize, Vec<usize>>,
    (row, demand, most): (usize, &[i64], u64),
) -> f64 {
    /// Even a pod that asks for nothing has to be placed.
    const LEAST: f64 = 1e-12;
    let share = |shape: usize| {
        let of = &order.shelf.shapes[shape];
        let count = times(of.net.as_deref()?, demand).min(most);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let share = (of.price(order.rows[row].masks[shape])? + order.node_cost) / count as f64;
        (count > 0).then_some(share.max(LEAST))
    };
    let least = |reserved: bool| {
        let is_wanted = |at: &&usize| order.shelf.shapes[**at].reservation.is_some() == reserved;
        let all = fronts[&row].iter().filter(is_wanted);
        all.filter_map(|at| share(*at)).min_by(f64::total_cmp)
    };
    least(false).or_else(|| least(true)).unwrap_or(0.0)
}
