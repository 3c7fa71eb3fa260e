//! Counts the DaemonSet pods of new nodes by topology counter.

use std::collections::BTreeMap;

use crate::scheduling::index::{CounterIndex, DaemonIndex, DomainIndex, LocationIndex};
use crate::scheduling::packing::context::{ItemOfferings, OpenedNode, PackingContext};
use crate::scheduling::packing::fill_bin::offerings_of;
use crate::scheduling::problem::daemon_constraints::{DaemonOnType, Presence};
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::scheduling::topology::Topology;
use crate::scheduling::topology::node_counters::DaemonCounts;
use crate::scheduling::topology::topology_state::TopologyState;

/// Counts the DaemonSet pods of a claim's node in the domains in which the node is or may be.
pub(crate) fn count_daemons(
    context: &PackingContext<'_, '_>,
    items: ItemOfferings<'_>,
    opened: &OpenedNode,
    site: LocationIndex,
    board: &mut TopologyState<'_>,
) {
    for (agent, is_sure) in daemons_of(context, items, opened) {
        for tally in &context.topology.daemon_overheads[agent] {
            board.count_pods(*tally, site, 1, is_sure);
        }
    }
}

/// Returns the constrained DaemonSets of a claim's node, and whether each of them certainly runs.
pub(crate) fn daemons_of(
    context: &PackingContext<'_, '_>,
    items: ItemOfferings<'_>,
    opened: &OpenedNode,
) -> Vec<(DaemonIndex, bool)> {
    let template = &context.templates[opened.template];
    let overhead = &template.shapes[opened.claim.shape].overhead.agents;
    if overhead.is_empty() {
        return Vec::new();
    }
    let offerings = offerings_of(items.lots, items.rows, &opened.claim.parts);
    let labels = template.labels_to_set(&offerings);
    let agents = &context.problem.agents;
    overhead
        .iter()
        .filter_map(|constrained| {
            Some((
                constrained.agent,
                agents.runs_on(constrained, |key| match labels.get(key) {
                    Some(value) => Some(Some(&value[..])),
                    None => template.is_undefined(key).then_some(None),
                })?,
            ))
        })
        .collect()
}

/// Returns the DaemonSet pods of a new node by type and counter.
pub(crate) fn daemon_counts(topology: &Topology, templates: &[NodeTemplate<'_>]) -> DaemonCounts {
    if !topology.counts_daemons() {
        return DaemonCounts::default();
    }
    templates
        .iter()
        .map(|template| {
            template
                .shapes
                .iter()
                .map(|shape| daemon_count(topology, shape.overhead.agents.iter()))
                .collect()
        })
        .collect()
}

/// Returns the number of these DaemonSet pods by counter.
fn daemon_count<'m>(
    topology: &Topology,
    overhead: impl Iterator<Item = &'m DaemonOnType>,
) -> BTreeMap<CounterIndex, u32> {
    let mut count: BTreeMap<CounterIndex, u32> = BTreeMap::new();
    for tally in overhead.flat_map(|constrained| &topology.daemon_overheads[constrained.agent]) {
        *count.entry(*tally).or_insert(0) += 1;
    }
    count
}

/// Returns, by counter, the DaemonSet pods that certainly run on one more node in a domain, for any
/// type.
pub(crate) fn sure_daemons<'g>(
    context: &'g PackingContext<'_, '_>,
    cell: DomainIndex,
) -> &'g [(CounterIndex, u32)] {
    context.daemon_overheads[cell].get_or_init(|| least_daemons(context, cell))
}

fn least_daemons(context: &PackingContext<'_, '_>, cell: DomainIndex) -> Vec<(CounterIndex, u32)> {
    let mut least: Option<BTreeMap<CounterIndex, u32>> = None;
    for (at, template) in context.templates.iter_enumerated() {
        let sold = context.cells.offering_masks(at, cell).into_iter().flatten();
        let sold = template.shapes.iter().zip(sold);
        for (shape, _) in sold.filter(|(_, mask)| **mask != 0) {
            let agents = shape.overhead.agents.iter();
            let sure = agents.filter(|agent| agent.sure == Presence::Yes);
            let counts = daemon_count(context.topology, sure);
            least = Some(match least {
                None => counts,
                Some(mut known) => {
                    known.retain(|tally, count| {
                        *count = counts.get(tally).copied().unwrap_or(0).min(*count);
                        *count > 0
                    });
                    known
                }
            });
        }
    }
    least.into_iter().flatten().collect()
}
