//! Estimates the cost per pod, and selects the instance types to evaluate.

use std::collections::BTreeMap;

use crate::scheduling::index::{ItemGroupIndex, RowIndex, TypeIndex};
use crate::scheduling::packing::PackingInput;
use crate::scheduling::packing::fill_bin::ItemGroup;
use crate::scheduling::packing::launch_options::{LaunchQuery, Ledger};
use crate::scheduling::problem::resource_vector::{COMMON, copies_that_fit, fits};

/// Number of evaluated types with a similar ratio of memory to cpu.
const FRONT_MAX: f64 = 24.0;

/// Returns the counter whose limit per node requires the most nodes, and the number of its pods
/// that may be on the same node.
pub(crate) fn scarcest_counter(
    input: &PackingInput<'_>,
    group_ids: &[ItemGroupIndex],
) -> Option<(usize, u64)> {
    let mut needed: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for lot in group_ids {
        let shares = input.lots[*lot].shares;
        for (counter, most) in &shares.limits {
            if shares.adds.contains(counter) {
                let together = u64::from(*most) + 1;
                let hosts = needed.entry(*counter).or_insert((0, together));
                hosts.0 += input.stock[*lot];
                hosts.1 = hosts.1.min(together);
            }
        }
    }
    let most = needed.into_iter().rev().max_by_key(|counter| counter.1.0 / counter.1.1.max(1));
    most.map(|(counter, (_, together))| (counter, together))
}

/// Returns the types to evaluate, by compatible offerings. Every item group that fits any type fits
/// one of these.
pub(crate) fn types_to_evaluate(
    input: &PackingInput<'_>,
    group_ids: &[ItemGroupIndex],
    ledger: &Ledger,
) -> BTreeMap<RowIndex, Vec<TypeIndex>> {
    let mut whole: BTreeMap<RowIndex, Vec<TypeIndex>> = BTreeMap::new();
    let mut types_by_row: BTreeMap<RowIndex, Vec<TypeIndex>> = BTreeMap::new();
    for lot in group_ids {
        let group = &input.lots[*lot];
        let known = whole.entry(group.row);
        let known = known.or_insert_with(|| cost_front(input, group.row, ledger));
        let selected = types_by_row.entry(group.row);
        let selected = selected.or_insert_with(|| thin_out(input, known));
        // A similar type that was left out may have more of a resource.
        if !selected.iter().any(|at| has_room(input, *at, group)) {
            selected.extend(known.iter().find(|at| has_room(input, **at, group)));
            selected.sort_unstable();
        }
        // `min_values` may be satisfiable for these pods, but not for all pods that fit on a type.
        if !input.variety.is_empty() && !selected.iter().any(|at| has_room(input, *at, group)) {
            let rows = [&input.rows[group.row]];
            let alone = LaunchQuery::new(input.template, input.variety, &rows, group.demand);
            selected.extend(alone.cheapest_type(ledger).map(|(shape, _)| shape));
            selected.sort_unstable();
        }
    }
    types_by_row
}

/// Returns whether a node of a type has capacity for the pods of a group that start together.
fn has_room(input: &PackingInput<'_>, shape: TypeIndex, group: &ItemGroup<'_>) -> bool {
    let net = input.template.shapes[shape].net.as_deref();
    net.is_some_and(|net| match group.together {
        0 | 1 => fits(net, group.demand),
        together => copies_that_fit(net, group.demand) >= together,
    })
}

/// Returns the compatible types, by price, that are cheaper than all larger types or use less of
/// the limits.
fn cost_front(input: &PackingInput<'_>, row: RowIndex, ledger: &Ledger) -> Vec<TypeIndex> {
    let shapes = &input.template.shapes;
    let mut priced: Vec<(f64, TypeIndex)> = Vec::new();
    for (at, mask) in input.rows[row].masks.iter_enumerated() {
        if let Some(price) = shapes[at].lowest_price(*mask)
            && shapes[at].net.is_some()
            && ledger.allowed_copies(&shapes[at].limited) > 0
            && is_varied(input, row, at, ledger)
        {
            priced.push((price, at));
        }
    }
    priced.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let mut kept: Vec<(&[i64], &[i64])> = Vec::new();
    priced.retain(|(_, at)| {
        let (net, limited) = (input.net_resources(*at), input.limit_usage(*at));
        let mut others = kept.iter();
        let is_beaten = others.any(|(larger, smaller)| fits(larger, net) && fits(limited, smaller));
        if !is_beaten {
            kept.push((net, limited));
        }
        !is_beaten
    });
    priced.into_iter().map(|(_, at)| at).collect()
}

/// Returns whether all pods that fit this type also fit enough other types for `min_values`.
fn is_varied(input: &PackingInput<'_>, row: RowIndex, shape: TypeIndex, ledger: &Ledger) -> bool {
    let shapes = &input.template.shapes;
    if input.variety.is_empty() || shapes[shape].reservation.is_some() {
        return true;
    }
    let masks = &input.rows[row].masks;
    let planned = input.net_resources(shape);
    let types = shapes.keys().filter(|other| {
        let net = input.net_resources(*other);
        masks[*other] != 0
            && shapes[*other].is_interchangeable(&shapes[shape])
            && net.iter().zip(planned).all(|(net, planned)| net >= planned)
            && net.len() == planned.len()
            && ledger.allowed_copies(input.limit_usage(*other)) > 0
    });
    input.variety.are_satisfied_by(input.template, types)
}

/// Selects a few similar types for each ratio of memory to cpu and of rare resources. The given
/// types are sorted by price. After packing, claims are moved to the best of all types.
fn thin_out(input: &PackingInput<'_>, shapes: &[TypeIndex]) -> Vec<TypeIndex> {
    let mut alike: BTreeMap<(i64, &[i64]), Vec<TypeIndex>> = BTreeMap::new();
    // Reservations are cheap in any size, and may be used up.
    let (mut kept, bought): (Vec<TypeIndex>, Vec<TypeIndex>) =
        shapes.iter().partition(|at| input.template.shapes[**at].reservation.is_some());
    for at in bought {
        let net = input.net_resources(at);
        // The ratio is rounded to a quarter of a doubling.
        let (cpu, memory) = (amount_of(net, 0), amount_of(net, 1));
        #[expect(clippy::cast_possible_truncation, reason = "a logarithm is small")]
        let ratio = (4.0 * (memory / cpu).log2()).round() as i64;
        let rare = net.get(COMMON..).unwrap_or_default();
        alike.entry((ratio, rare)).or_default().push(at);
    }
    for shapes in alike.into_values() {
        let sizes = shapes.iter().map(|at| amount_of(input.net_resources(*at), 0));
        let (least, most) = sizes.fold((f64::INFINITY, 1.0), |(least, most), size| {
            (f64::min(least, size), f64::max(most, size))
        });
        let step = (most / least).powf(1.0 / FRONT_MAX);
        let mut next = 0.0;
        for at in &shapes {
            let cpu = amount_of(input.net_resources(*at), 0);
            // The factor tolerates rounding errors, which are much smaller than a step.
            if cpu >= next * 0.999_999 || cpu >= most {
                kept.push(*at);
                next = cpu * step;
            }
        }
    }
    kept.sort_unstable();
    kept
}

/// Returns the amount of a resource for a comparison, at least one.
fn amount_of(net: &[i64], axis: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "only to tell what is alike")]
    let amount = net.get(axis).copied().unwrap_or(0).max(1) as f64;
    amount
}

/// Returns the lowest cost per pod of many identical pods if at most `most` of them may be on one
/// node; zero if a pod fits on no node. If pods need separate nodes, each costs a node.
/// Reservations cost almost nothing for some pods and cannot be used by others, so they are
/// considered only for pods without other options.
pub(crate) fn worth_of(
    input: &PackingInput<'_>,
    types_by_row: &BTreeMap<RowIndex, Vec<TypeIndex>>,
    row: RowIndex,
    demand: &[i64],
    most: u64,
) -> f64 {
    /// A pod without requests must be scheduled, too.
    const LEAST: f64 = 1e-12;
    let least = [false, true].into_iter().find_map(|reserved| {
        let shares = types_by_row[&row].iter().filter_map(|at| {
            let shape = &input.template.shapes[*at];
            if shape.reservation.is_some() != reserved {
                return None;
            }
            let count = copies_that_fit(shape.net.as_deref()?, demand).min(most);
            let price = shape.lowest_price(input.rows[row].masks[*at])?;
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let share = (price + input.node_cost) / count as f64;
            (count > 0).then_some(share.max(LEAST))
        });
        shares.min_by(f64::total_cmp)
    });
    least.unwrap_or(0.0)
}
