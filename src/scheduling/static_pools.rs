//! Plans the missing nodes of static pools, independent of pods.
//!
//! Source: spec/scheduling.md §3.3. Karpenter leaves the choice of type and zone to the launch.
//! Outrigger plans both: the cheapest type and, if prices are equal, the zone with the fewest nodes
//! of the pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use thiserror::Error;

use crate::model::id::{PoolName, Zone};
use crate::model::labels::{POOL, ZONE};
use crate::model::pool::Pool;
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::scheduling::diagnose::no_offering::{limit_rejection, offering_rejection};
use crate::scheduling::index::{IndexVec, TemplateIndex, TypeIndex};
use crate::scheduling::packing::launch_options::{LaunchQuery, Ledger, Ledgers, Scratch};
use crate::scheduling::problem::Problem;
use crate::scheduling::supply::min_values::{MinValues, template_of};
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::scheduling::{
    NewNodeClaim, PoolRejection, Rejection, RejectionCode, least_daemon_requests,
};
use crate::state::snapshot::Snapshot;
use crate::state::unavailable_offerings::UnavailableOfferings;

/// Maximum number of nodes planned for one pool in one pass. The other nodes follow in the next
/// pass.
const AT_ONCE: usize = 500;

/// Capacity that is independent of pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum StaticDemand {
    /// The nodes of a static pool.
    #[error("nodes of pool {0}")]
    Nodes(PoolName),
    /// The capacity that a buffer reserves.
    #[error("capacity of buffer {0}")]
    Room(String),
}

/// Static capacity that cannot be launched now, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// The kind of capacity.
    pub need: StaticDemand,
    /// The missing quantity: nodes, or virtual pods.
    pub missing: usize,
    /// The rejections, never empty.
    pub reasons: Arc<[PoolRejection]>,
}

/// Returns the missing nodes of static pools, and those that cannot be launched.
pub fn plan_replicas(
    snapshot: &Snapshot<'_>,
    now: Timestamp,
) -> (Vec<NewNodeClaim>, Vec<Shortfall>) {
    let (mut claims, mut short) = (Vec::new(), Vec::new());
    if snapshot.lacking.is_empty() {
        return (claims, short);
    }
    let problem = Problem::new(&[], snapshot);
    let scheduling = &snapshot.cluster.scheduling;
    let pools = snapshot.lacking.keys();
    let pools = pools.filter_map(|name| snapshot.cluster.pool(name.as_str()));
    let templates = pools.map(|pool| template_of(pool, &problem, snapshot, now));
    let templates: IndexVec<TemplateIndex, NodeTemplate<'_>> = templates.collect();
    let nothing = problem.axes.demand_of(&Resources::default(), None);
    let mut ledgers = Ledgers::new(&templates, snapshot);
    // All nodes are planned before alternatives are added, because alternatives use limits, too.
    let mut planned = Vec::with_capacity(templates.len());
    for (index, template) in templates.iter_enumerated() {
        let wanted = snapshot.lacking[&template.pool.name].min(AT_ONCE);
        let mut ledger = ledgers.ledger_for(index);
        let variety = MinValues::from_template(template, scheduling.min_values);
        let mut shapes = Vec::new();
        while shapes.len() < wanted {
            let query = LaunchQuery::new(template, &variety, &[], &nothing);
            let Some((shape, price)) = query.cheapest_type(&ledger) else {
                break;
            };
            ledger.reserve(&template.shapes[shape].limited, 1);
            shapes.push((shape, price));
        }
        let incomplete = shapes.len() < wanted;
        let why = incomplete.then(|| launch_obstacle(snapshot.holds, template, &variety, &ledger));
        ledgers.set_ledger(index, ledger);
        planned.push((shapes, why));
    }
    for ((index, template), (shapes, why)) in templates.iter_enumerated().zip(planned) {
        let missing = snapshot.lacking[&template.pool.name];
        let mut ledger = ledgers.ledger_for(index);
        let (launched, shortage) = plan_nodes(template, &shapes, &nothing, snapshot, &mut ledger);
        ledgers.set_ledger(index, ledger);
        if let Some((code, miss)) = why.or(shortage) {
            let pool = Some(template.pool.name.clone());
            short.push(Shortfall {
                need: StaticDemand::Nodes(template.pool.name.clone()),
                missing: missing - launched.len(),
                reasons: [PoolRejection { pool, code, miss }].into(),
            });
        }
        claims.extend(launched);
    }
    (claims, short)
}

/// Plans nodes of one pool with these types. Returns why some of them cannot be launched.
fn plan_nodes(
    template: &NodeTemplate<'_>,
    planned: &[(TypeIndex, f64)],
    nothing: &[i64],
    snapshot: &Snapshot<'_>,
    ledger: &mut Ledger,
) -> (Vec<NewNodeClaim>, Option<Rejection>) {
    let pool = template.pool;
    let scheduling = &snapshot.cluster.scheduling;
    let variety = MinValues::from_template(template, scheduling.min_values);
    let mut scratch = Scratch::default();
    let mut zones = nodes_by_zone(pool, snapshot);
    let mut claims = Vec::with_capacity(planned.len());
    let mut why = None;
    for (shape, price) in planned {
        let before = ledger.clone();
        let query = LaunchQuery::new(template, &variety, &[], nothing);
        let (mut offerings, types) =
            query.launch_options(*shape, *price, scheduling, ledger, &mut scratch);
        // Other claims may have used the limits that remained when this claim was planned.
        let shortage = variety.shortage(template, types.iter().copied());
        let is_reserved = template.shapes[*shape].reservation.is_some();
        if let Some(shortage) = shortage.filter(|_| !is_reserved) {
            *ledger = before;
            ledger.release(&template.shapes[*shape].limited);
            why = Some(shortage);
            continue;
        }
        offerings.sort_by_key(|(offering, price)| {
            let nodes = zones.get(&offering.zone).copied().unwrap_or(0);
            (*price, nodes)
        });
        if let Some((first, _)) = offerings.first() {
            *zones.entry(first.zone.clone()).or_insert(0) += 1;
        }
        claims.push(NewNodeClaim {
            pool: pool.name.clone(),
            offerings,
            labels: template.launch_labels(&[], *shape),
            requests: least_daemon_requests(template, &types),
            pods: Vec::new(),
        });
    }
    (claims, why)
}

/// Returns why a pool cannot launch any node.
pub(super) fn launch_obstacle(
    holds: &UnavailableOfferings,
    template: &NodeTemplate<'_>,
    variety: &MinValues<'_>,
    ledger: &Ledger,
) -> Rejection {
    let shapes = &template.shapes;
    if let Some(unusable) = template.unusable() {
        return unusable;
    }
    let fits = shapes.keys().filter(|shape| shapes[*shape].net.is_some());
    let fits = fits.map(|shape| (shape, !shapes[shape].offers.is_empty()));
    let fits: Vec<(TypeIndex, bool)> = fits.collect();
    if fits.is_empty() {
        let text = "DaemonSets need more than any of its instance types has";
        return RejectionCode::Resources.with_message(text);
    }
    let sold = fits.iter().filter(|(_, sold)| *sold);
    let sold: Vec<TypeIndex> = sold.map(|(shape, _)| *shape).collect();
    if sold.is_empty() {
        return offering_rejection(holds, template, &fits, &Requirements::default());
    }
    let would_do =
        sold.iter().copied().filter(|shape| ledger.allowed_copies(&shapes[*shape].limited) > 0);
    match variety.shortage(template, would_do.clone()) {
        Some(shortage) if would_do.count() > 0 => shortage,
        _ => limit_rejection(template, &sold, ledger),
    }
}

/// Returns the number of nodes of a pool by zone, if known.
fn nodes_by_zone(pool: &Pool, snapshot: &Snapshot<'_>) -> BTreeMap<Zone, usize> {
    let mut zones = BTreeMap::new();
    for room in snapshot.rooms.iter().filter(|room| room.open) {
        if sole_value(&room.labels, POOL) == Some(pool.name.as_str())
            && let Some(zone) = sole_value(&room.labels, ZONE)
        {
            *zones.entry(Zone(zone.to_owned())).or_insert(0) += 1;
        }
    }
    zones
}

/// Returns the value of a label, if the label has only one.
pub(crate) fn sole_value<'r>(labels: &'r Requirements, key: &str) -> Option<&'r str> {
    let mut values = labels.get(key)?.values()?.iter();
    let first = values.next()?;
    values.next().is_none().then_some(first.as_str())
}
