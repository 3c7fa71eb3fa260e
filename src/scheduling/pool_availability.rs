//! What one pool can have now: which types each of its requirements leaves, what of them is sold,
//! held down or beyond its limits. It must not know what waits for nodes, nor who asks.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use jiff::Timestamp;

use crate::model::id::{PoolName, ReservationId, TypeName, Zone};
use crate::model::instance::{CapacityType, InstanceType, OfferingKey, Price};
use crate::model::labels::OF_OFFERINGS;
use crate::model::quantity::Resources;
use crate::model::requirement::{Requirement, Requirements};
use crate::scheduling::diagnose::no_offering::held_down;
use crate::scheduling::packing::launch_options::{self, Ledger, Ledgers};
use crate::scheduling::problem::Problem;
use crate::scheduling::rejection::RejectionDetail;
use crate::scheduling::static_pools::barren;
use crate::scheduling::supply::daemon_overhead::of_pool;
use crate::scheduling::supply::limits::LimitScope;
use crate::scheduling::supply::min_values::{MinValues, widen};
use crate::scheduling::supply::node_template::{NodeTemplate, TypeOption, of_types, sells};
use crate::scheduling::{PoolRejection, RejectionCode};
use crate::state::snapshot::Snapshot;

/// Offerings that are told one by one.
const TOLD: usize = 5;

/// What a pool can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolAvailability {
    /// How many types there are at all.
    pub catalog: usize,
    /// What its nodes' labels have to be, and how many types each leaves alone.
    pub asked: Vec<RequirementEffect>,
    /// How many types all of them leave together.
    pub suited: usize,
    /// How many of those have no room for the pool's daemons.
    pub crowded: usize,
    /// How many types can be had.
    pub types: usize,
    /// How many offerings of them can be had in each zone.
    pub zones: BTreeMap<Zone, usize>,
    /// How many offerings of them are bought in each way.
    pub capacity_types: BTreeMap<CapacityType, usize>,
    /// The first few offerings in the order of planning, with the prices that are paid.
    pub cheapest: Vec<(OfferingKey, Price)>,
    /// What is held down and would do.
    pub held: Option<UnavailableSummary>,
    /// Limits on its nodes, those that it shares with others too.
    pub limits: Vec<RemainingLimit>,
    /// Why not one node can be made for it, where that is so.
    pub barren: Option<PoolRejection>,
}

/// What a label has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequirementEffect {
    /// The label.
    pub key: String,
    /// What it has to be.
    pub wanted: Requirement,
    /// How many types have it so, or are sold so.
    pub types: usize,
}

/// Offerings that are held down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnavailableSummary {
    /// How many.
    pub offerings: usize,
    /// The first of them by name.
    pub first: OfferingKey,
    /// When one of them is asked for again.
    pub until: Option<Timestamp>,
    /// Whether some are of a zone where nodes of the pool do not register.
    pub unregistered: bool,
}

impl UnavailableSummary {
    fn of(miss: RejectionDetail) -> Option<Self> {
        match miss {
            RejectionDetail::Held {
                offerings,
                first,
                until,
                unregistered,
            } => Some(Self {
                offerings,
                first,
                until,
                unregistered,
            }),
            _ => None,
        }
    }
}

/// A limit and what is left of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingLimit {
    /// Whose it is.
    pub of: LimitOwner,
    /// The resource; none means the number of nodes.
    pub resource: Option<String>,
    /// How much there may be.
    pub most: i64,
    /// How much of that is left; below zero where it is exceeded.
    pub left: i64,
    /// Why nobody may have anything of it now.
    pub closed: Option<String>,
}

/// Whose limit it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitOwner {
    /// The pool's own.
    Pool,
    /// That of all pools of the cluster.
    Cluster,
    /// That of all clusters.
    Fleet,
    /// That of a reservation.
    Reservation(ReservationId),
}

impl PoolAvailability {
    /// How many offerings can be had.
    pub fn offerings(&self) -> usize {
        self.capacity_types.values().sum()
    }

    /// Whether nodes can be made for it, now or once limits leave room again.
    pub fn is_open(&self) -> bool {
        let Some(barren) = &self.barren else {
            return true;
        };
        match barren.miss {
            // A limit that no node keeps to never leaves room.
            RejectionDetail::Nodes { limit, .. } => limit > 0,
            RejectionDetail::Limit { limit, least, .. } => limit >= least,
            _ => barren.code == RejectionCode::Reservation,
        }
    }
}

/// What a pool can have now; none where there is no such pool.
pub fn range(snapshot: &Snapshot<'_>, pool: &PoolName, now: Timestamp) -> Option<PoolAvailability> {
    let pool = snapshot.cluster.pool(pool.as_str())?;
    let scheduling = &snapshot.cluster.scheduling;
    let problem = Problem::new(&[], snapshot);
    let mut shelf = NodeTemplate::new(pool, &problem, snapshot, now);
    widen(&mut shelf, scheduling.min_values);
    let variety = MinValues::of(&shelf, scheduling.min_values);
    let ledger = Ledgers::new(slice::from_ref(&shelf), snapshot).of(0);
    let nothing = problem.axes.demand(&Resources::default(), None);
    let best = launch_options::cheapest((&shelf, &variety), &[], &nothing, &ledger);
    let barren = match (best, shelf.fault) {
        (Some(_), None) => None,
        _ => Some(barren(snapshot.holds, &shelf, &variety, &ledger)),
    };
    let roomy = || shelf.shapes.iter().filter(|own| own.net.is_some());
    let had = || shelf.shapes.iter().filter(|own| is_had(&shelf, own));
    let (mut zones, mut capacity_types) = (BTreeMap::new(), BTreeMap::new());
    for offer in had().flat_map(|own| &own.offers) {
        *zones.entry(offer.zone.clone()).or_insert(0) += 1;
        *capacity_types.entry(offer.capacity_type).or_insert(0) += 1;
    }
    let held = held_down((snapshot.holds, &shelf), roomy(), &Requirements::default());
    let catalog = snapshot.catalog_of(&pool.name);
    Some(PoolAvailability {
        catalog: catalog.len(),
        asked: asked(&shelf, snapshot),
        suited: catalog.types().filter(|it| suits(it, &shelf.side)).count(),
        crowded: types(shelf.shapes.iter()) - types(roomy()),
        types: types(had().filter(|own| !own.offers.is_empty())),
        zones,
        capacity_types,
        cheapest: cheapest(&shelf, snapshot),
        held: held.and_then(UnavailableSummary::of),
        limits: limits(&shelf, &ledger),
        barren: barren.map(|(code, miss)| PoolRejection {
            pool: Some(pool.name.clone()),
            code,
            miss,
        }),
    })
}

/// Whether there is room on a type beside daemons, and anything left of its reservation.
fn is_had(shelf: &NodeTemplate<'_>, shape: &TypeOption<'_>) -> bool {
    let reservation = shape.reservation.map(|place| &shelf.reservations[place]);
    shape.net.is_some() && reservation.is_none_or(|own| own.left > 0)
}

/// How many types these are.
fn types<'s>(shapes: impl Iterator<Item = &'s TypeOption<'s>>) -> usize {
    let names: BTreeSet<&TypeName> = shapes.map(|own| &own.instance_type.name).collect();
    names.len()
}

/// Whether a type has labels as wanted, and is sold so.
fn suits(it: &InstanceType, wanted: &Requirements) -> bool {
    let mut offerings = it.offerings.iter();
    it.requirements.intersects(&of_types(wanted)).is_ok()
        && offerings.any(|own| own.available && sells(wanted, own))
}

/// What each label leaves alone: all that the pool requires, and of the rest what leaves anything
/// out.
fn asked(shelf: &NodeTemplate<'_>, snapshot: &Snapshot<'_>) -> Vec<RequirementEffect> {
    let catalog = snapshot.catalog_of(&shelf.pool.name);
    let all = shelf.side.iter().filter(|(key, _)| !of_pool(key));
    let asked = all.map(|(key, wanted)| {
        let alone: Requirements = [(key, wanted.clone())].into_iter().collect();
        let of_offering = OF_OFFERINGS.contains(&key);
        let suits = |it: &&InstanceType| match of_offering {
            true => suits(it, &alone),
            // Where it is sold is another matter.
            false => it.requirements.intersects(&alone).is_ok(),
        };
        RequirementEffect {
            key: key.to_owned(),
            wanted: wanted.clone(),
            types: catalog.types().filter(suits).count(),
        }
    });
    let is_required = |own: &RequirementEffect| shelf.pool.requirements.get(&own.key).is_some();
    let asked = asked.filter(|own| is_required(own) || own.types < catalog.len());
    asked.collect()
}

fn cheapest(shelf: &NodeTemplate<'_>, snapshot: &Snapshot<'_>) -> Vec<(OfferingKey, Price)> {
    let all = shelf.by_price.iter().map(|(at, bit)| {
        let shape = &shelf.shapes[*at];
        (shape, shape.offers[*bit])
    });
    let told = all.filter(|(shape, _)| is_had(shelf, shape)).take(TOLD);
    let priced = told.map(|(shape, offer)| {
        let key = shape.key(offer);
        // Overlays count where nodes are planned, not in what is said of their cost.
        let listed = snapshot.catalog.offering(&key);
        let price = listed.map_or(offer.price, |own| own.price);
        (key, price)
    });
    priced.collect()
}

/// All limits but those of reservations that the pool cannot have.
fn limits(shelf: &NodeTemplate<'_>, ledger: &Ledger) -> Vec<RemainingLimit> {
    let first = shelf.limits.len() - shelf.reservations.len();
    let of = |at: usize| match shelf.limits[at].scope {
        LimitScope::Pool => Some(LimitOwner::Pool),
        LimitScope::Cluster => Some(LimitOwner::Cluster),
        LimitScope::Fleet => Some(LimitOwner::Fleet),
        LimitScope::Reservation => {
            let place = at - first;
            let mut shapes = shelf.shapes.iter();
            let is_had = shapes.any(|own| own.reservation == Some(place));
            is_had.then(|| LimitOwner::Reservation(shelf.reservations[place].id.clone()))
        }
    };
    let left = |at: usize| {
        let own = &shelf.limits[at];
        Some(RemainingLimit {
            of: of(at)?,
            resource: own.resource.map(str::to_owned),
            most: own.most,
            left: ledger.left(at),
            closed: own.closed.map(str::to_owned),
        })
    };
    (0..shelf.limits.len()).filter_map(left).collect()
}
