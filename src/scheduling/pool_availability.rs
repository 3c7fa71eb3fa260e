//! Reports what one pool can launch now: the types that each requirement leaves, and which of these
//! types are available, are unavailable or exceed limits.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use jiff::Timestamp;

use crate::model::id::{PoolName, ReservationId, TypeName, Zone};
use crate::model::instance::{CapacityType, InstanceType, OfferingKey, Price};
use crate::model::labels::OF_OFFERINGS;
use crate::model::quantity::Resources;
use crate::model::requirement::{Requirement, Requirements};
use crate::scheduling::diagnose::no_offering::unavailable_detail;
use crate::scheduling::index::TemplateIndex;
use crate::scheduling::packing::launch_options::{LaunchQuery, Ledger, Ledgers};
use crate::scheduling::problem::Problem;
use crate::scheduling::rejection::{RejectionDetail, UnavailableSummary};
use crate::scheduling::static_pools::launch_obstacle;
use crate::scheduling::supply::daemon_overhead::is_pool_label;
use crate::scheduling::supply::limits::LimitScope;
use crate::scheduling::supply::min_values::{MinValues, template_of};
use crate::scheduling::supply::node_template::{NodeTemplate, TypeOption, offering_matches};
use crate::scheduling::supply::offering_labels::type_requirements;
use crate::scheduling::{PoolRejection, RejectionCode};
use crate::state::snapshot::Snapshot;

/// Maximum number of listed offerings.
const TOLD: usize = 5;

/// The offerings that a pool can launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolAvailability {
    /// Number of types in the catalog.
    pub catalog: usize,
    /// Requirements of the pool, with the number of types that satisfy each.
    pub asked: Vec<RequirementEffect>,
    /// Number of types that satisfy all requirements.
    pub suited: usize,
    /// Number of these types without capacity for the DaemonSets.
    pub crowded: usize,
    /// Number of types that can be launched.
    pub types: usize,
    /// Number of available offerings by zone.
    pub zones: BTreeMap<Zone, usize>,
    /// Number of available offerings by capacity type.
    pub capacity_types: BTreeMap<CapacityType, usize>,
    /// The first offerings in planning order, with list prices.
    pub cheapest: Vec<(OfferingKey, Price)>,
    /// Matching offerings that are unavailable.
    pub held: Option<UnavailableSummary>,
    /// Limits of the nodes of the pool, including shared limits.
    pub limits: Vec<RemainingLimit>,
    /// Why no node can be launched. `None` if one can be launched.
    pub barren: Option<PoolRejection>,
}

/// A requirement and its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequirementEffect {
    /// The label.
    pub key: String,
    /// The required values.
    pub wanted: Requirement,
    /// Number of types that satisfy the requirement or have matching offerings.
    pub types: usize,
}

/// A limit, and how much of it remains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingLimit {
    /// The owner of the limit.
    pub of: LimitOwner,
    /// The resource. `None` means the number of nodes.
    pub resource: Option<String>,
    /// The limit.
    pub most: i64,
    /// The remainder; negative if exceeded.
    pub left: i64,
    /// Why nothing may be launched under this limit now. `None` if launches are allowed.
    pub closed: Option<String>,
}

/// The owner of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitOwner {
    /// The pool itself.
    Pool,
    /// The cluster.
    Cluster,
    /// The fleet.
    Fleet,
    /// A reservation.
    Reservation(ReservationId),
}

impl PoolAvailability {
    /// Returns the number of available offerings.
    pub fn offering_count(&self) -> usize {
        self.capacity_types.values().sum()
    }

    /// Returns whether nodes can be launched, either now or once limits allow more nodes.
    pub fn is_open(&self) -> bool {
        let Some(barren) = &self.barren else {
            return true;
        };
        match barren.miss {
            // A limit of zero never allows a node.
            RejectionDetail::Nodes { limit, .. } => limit > 0,
            RejectionDetail::Limit { limit, least, .. } => limit >= least,
            _ => barren.code == RejectionCode::Reservation,
        }
    }
}

/// Returns what a pool can launch now, or `None` if the pool does not exist.
pub fn availability_of(
    snapshot: &Snapshot<'_>,
    pool: &PoolName,
    now: Timestamp,
) -> Option<PoolAvailability> {
    let pool = snapshot.cluster.pool(pool.as_str())?;
    let scheduling = &snapshot.cluster.scheduling;
    let problem = Problem::new(&[], snapshot);
    let template = template_of(pool, &problem, snapshot, now);
    let variety = MinValues::from_template(&template, scheduling.min_values);
    let ledger = Ledgers::new(slice::from_ref(&template), snapshot).ledger_for(TemplateIndex(0));
    let nothing = problem.axes.demand_of(&Resources::default(), None);
    let best = LaunchQuery::new(&template, &variety, &[], &nothing).cheapest_type(&ledger);
    let can_launch = best.is_some() && template.fault.is_none();
    let barren = (!can_launch).then(|| {
        let (code, miss) = launch_obstacle(snapshot.holds, &template, &variety, &ledger);
        let pool = Some(pool.name.clone());
        PoolRejection { pool, code, miss }
    });
    let shapes = template.shapes.iter();
    let roomy = shapes.clone().filter(|shape| shape.net.is_some());
    let all = shapes.clone();
    let launchable = all.filter(|shape| is_launchable(&template, shape));
    let (mut zones, mut capacity_types) = (BTreeMap::new(), BTreeMap::new());
    for offer in launchable.clone().flat_map(|shape| &shape.offers) {
        *zones.entry(offer.zone.clone()).or_insert(0) += 1;
        *capacity_types.entry(offer.capacity_type).or_insert(0) += 1;
    }
    let no_labels = Requirements::default();
    let held = unavailable_detail(snapshot.holds, &template, roomy.clone(), &no_labels);
    let catalog = snapshot.catalog_of(&pool.name);
    Some(PoolAvailability {
        catalog: catalog.len(),
        asked: requirement_effects(&template, snapshot),
        suited: catalog
            .types()
            .filter(|instance_type| has_matching_offering(instance_type, &template.side))
            .count(),
        crowded: count_types(shapes) - count_types(roomy),
        types: count_types(launchable.filter(|shape| !shape.offers.is_empty())),
        zones,
        capacity_types,
        cheapest: cheapest_offerings(&template, snapshot),
        held,
        limits: remaining_limits(&template, &ledger),
        barren,
    })
}

/// Returns whether a type has capacity after DaemonSets, and the reservation of the type is not
/// used up.
fn is_launchable(template: &NodeTemplate<'_>, shape: &TypeOption<'_>) -> bool {
    let reservation = shape.reservation.map(|place| &template.reservations[place]);
    shape.net.is_some() && reservation.is_none_or(|reservation| reservation.left > 0)
}

/// Counts distinct types.
fn count_types<'s>(shapes: impl Iterator<Item = &'s TypeOption<'s>>) -> usize {
    let names: BTreeSet<&TypeName> = shapes.map(|shape| &shape.instance_type.name).collect();
    names.len()
}

/// Returns whether a type has a matching offering.
fn has_matching_offering(instance_type: &InstanceType, wanted: &Requirements) -> bool {
    let mut offerings = instance_type.offerings.iter();
    let requirements = &instance_type.requirements;
    requirements.check_intersection(&type_requirements(wanted)).is_ok()
        && offerings.any(|offering| offering.available && offering_matches(wanted, offering))
}

/// Returns the effect of all requirements of the pool, and of other requirements that exclude
/// types.
fn requirement_effects(
    template: &NodeTemplate<'_>,
    snapshot: &Snapshot<'_>,
) -> Vec<RequirementEffect> {
    let catalog = snapshot.catalog_of(&template.pool.name);
    let all = template.side.iter().filter(|(key, _)| !is_pool_label(key));
    let effects = all.map(|(key, wanted)| {
        let single: Requirements = [(key, wanted.clone())].into_iter().collect();
        let of_offering = OF_OFFERINGS.contains(&key);
        RequirementEffect {
            key: key.to_owned(),
            wanted: wanted.clone(),
            types: catalog
                .types()
                .filter(|it| match of_offering {
                    true => has_matching_offering(it, &single),
                    // Availability is checked separately.
                    false => it.requirements.check_intersection(&single).is_ok(),
                })
                .count(),
        }
    });
    effects
        .filter(|effect| {
            let is_required = template.pool.requirements.get(&effect.key).is_some();
            is_required || effect.types < catalog.len()
        })
        .collect()
}

fn cheapest_offerings(
    template: &NodeTemplate<'_>,
    snapshot: &Snapshot<'_>,
) -> Vec<(OfferingKey, Price)> {
    let all = template.by_price.iter().map(|(index, bit)| {
        let shape = &template.shapes[*index];
        (shape, shape.offers[*bit])
    });
    all.filter(|(shape, _)| is_launchable(template, shape))
        .take(TOLD)
        .map(|(shape, offer)| {
            let key = shape.offering_key(offer);
            // Price overlays affect planning, not reported cost.
            let listed = snapshot.catalog.offering(&key);
            let price = listed.map_or(offer.price, |offering| offering.price);
            (key, price)
        })
        .collect()
}

/// Returns all limits except reservations that the pool cannot use.
fn remaining_limits(template: &NodeTemplate<'_>, ledger: &Ledger) -> Vec<RemainingLimit> {
    let first = template.limits.len() - template.reservations.len();
    (0..template.limits.len())
        .filter_map(|index| {
            let limit = &template.limits[index];
            let owner = match limit.scope {
                LimitScope::Pool => LimitOwner::Pool,
                LimitScope::Cluster => LimitOwner::Cluster,
                LimitScope::Fleet => LimitOwner::Fleet,
                LimitScope::Reservation => {
                    let place = index - first;
                    let mut shapes = template.shapes.iter();
                    shapes.find(|shape| shape.reservation == Some(place))?;
                    LimitOwner::Reservation(template.reservations[place].id.clone())
                }
            };
            Some(RemainingLimit {
                of: owner,
                resource: limit.resource.map(str::to_owned),
                most: limit.most,
                left: ledger.remaining_of(index),
                closed: limit.closed.map(str::to_owned),
            })
        })
        .collect()
}
