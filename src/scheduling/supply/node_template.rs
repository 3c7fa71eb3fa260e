//! The supply of one pool: instance types minus their DaemonSet overhead, and which pods may use
//! which offering.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::model::id::{NodeClassName, PoolName, Zone};
use crate::model::instance::{InstanceType, Offering, OfferingKey};
use crate::model::labels::{
    CAPACITY_TYPE, Labels, NODE_CLASS, OF_RESERVATIONS, POOL, ZONE, is_well_known,
};
use crate::model::pool::Pool;
use crate::model::requirement::{Incompatible, Operator, Requirement, Requirements};
use crate::model::reservation::Reservation;
use crate::model::taint::{Effect, first_untolerated};
use crate::scheduling::index::{DaemonIndex, IndexVec, TypeIndex};
use crate::scheduling::problem::daemon_constraints::{ConstrainedDaemons, DaemonOnType};
use crate::scheduling::problem::resource_vector::{
    fits, max_per_resource, running_max_per_resource,
};
use crate::scheduling::problem::{NodeRequirements, Problem, have_port_conflict};
use crate::scheduling::supply::compatible::{CompatibleOfferings, Incompatibility, LabelMatch};
use crate::scheduling::supply::daemon_overhead::{
    DaemonOverhead, DaemonSelection, PoolDaemons, is_pool_label, merged_requirement, select_keys,
};
use crate::scheduling::supply::limits::{Limit, RESERVATIONS_MAX, limits_of};
use crate::scheduling::supply::offering_labels::{
    is_decided, is_launch_label, is_type_label, restrict_zones, type_requirements,
};
use crate::scheduling::topology::topology_state::Match;
use crate::scheduling::{Rejection, RejectionCode};
use crate::state::snapshot::Snapshot;
use crate::state::unavailable_offerings::UnavailableOfferings;

/// Maximum number of evaluated offerings per type, cheapest first, one bit each. The largest AWS
/// region has 7 zones and 3 capacity types, which makes 21.
const OFFERS_MAX: usize = 64;

/// An instance type as used by a pool. Reserved capacity of a type is a separate option, so that
/// the same limits apply to all offerings of an option. Offerings with different DaemonSets are
/// separate options, too, so that all have the same overhead.
#[derive(Clone, Debug)]
pub(crate) struct TypeOption<'a> {
    /// The type.
    pub(crate) instance_type: &'a InstanceType,
    /// Resources for pods. `None` if DaemonSets exceed the type.
    pub(crate) net: Option<Vec<i64>>,
    /// DaemonSets on nodes of this type, and their requests.
    pub(crate) overhead: DaemonOverhead,
    /// Available offerings, cheapest first, at most `OFFERS_MAX`.
    pub(crate) offers: Vec<&'a Offering>,
    /// Offerings that are unavailable after failed launches.
    pub(crate) held: Vec<&'a Offering>,
    /// Index of the reservation to which all offerings of the option belong, if any.
    pub(crate) reservation: Option<usize>,
    /// Limit usage of a node, in the order of the limits of the template. Of the reservations, a
    /// node uses only its own.
    pub(crate) capacity: Vec<i64>,
    /// Limit usage of a claim with this planned type. The usage is higher than `capacity` if the
    /// alternatives of the claim must include larger types.
    pub(crate) limited: Vec<i64>,
}

/// A pool with its supply.
#[derive(Debug)]
pub(crate) struct NodeTemplate<'a> {
    /// The pool.
    pub(crate) pool: &'a Pool,
    /// Why no node can be launched at all. `None` if nodes can be launched.
    pub(crate) fault: Option<&'a str>,
    /// Known zone IDs.
    zone_ids: &'a BTreeMap<Zone, String>,
    /// Limits of the nodes of the pool: first those of the pool, then shared limits.
    pub(crate) limits: Vec<Limit<'a>>,
    /// Possible labels of the nodes of the pool.
    pub(crate) side: Requirements,
    /// Reservations with their remaining instances, by ID; equal for all templates.
    pub(crate) reservations: Vec<Reservation>,
    /// Usable types by name, unreserved first.
    pub(crate) shapes: IndexVec<TypeIndex, TypeOption<'a>>,
    /// All offerings by price, zone, type and capacity type, as indices of type and offering.
    pub(crate) by_price: Vec<(TypeIndex, usize)>,
    /// Maximum of each resource over all types.
    pub(crate) most: Vec<i64>,
    /// Types with offerings, by lowest price, then name.
    pub(crate) by_least: Vec<TypeIndex>,
    /// Running maximum of each resource in this order.
    most_by_least: Vec<Vec<i64>>,
    /// Labels that some of these types define.
    keys: BTreeSet<&'a str>,
}

impl<'a> NodeTemplate<'a> {
    /// Builds the template of a pool. Source: spec/scheduling.md §1.6, §2.9.
    pub(crate) fn new(
        pool: &'a Pool,
        problem: &Problem<'_>,
        snapshot: &Snapshot<'a>,
        now: Timestamp,
    ) -> Self {
        let mut side = pool.requirements.clone();
        side.add_all(&Requirements::from_labels(&pool.labels));
        side.add(POOL, Requirement::is_in([pool.name.as_str()]));
        if let Some(class) = &pool.node_class {
            side.add(NODE_CLASS, Requirement::is_in([class.as_str()]));
        }
        let catalog = snapshot.catalog_of(&pool.name);
        let fault = snapshot.overlaid.launch_fault(pool.name.as_str());
        restrict_zones(&mut side, catalog.zone_ids());
        let type_labels = type_requirements(&side);
        let daemons = PoolDaemons::new(pool, &side, problem, &snapshot.daemon_sets);
        let reservations = snapshot.reservations.values().cloned();
        let reservations: Vec<Reservation> = reservations.take(RESERVATIONS_MAX).collect();
        let limits = limits_of(pool, snapshot);
        let shapes: IndexVec<TypeIndex, TypeOption<'a>> = catalog
            .types()
            .filter(|it| {
                fault.is_none() && it.requirements.check_intersection(&type_labels).is_ok()
            })
            .flat_map(|instance_type| {
                let taken: Vec<i64> = limits
                    .iter()
                    .map(|limit| limit.usage_of(&instance_type.capacity, 1).max(0))
                    .collect();
                let shape = TypeOption {
                    instance_type,
                    net: None,
                    overhead: DaemonOverhead::default(),
                    offers: Vec::new(),
                    held: Vec::new(),
                    reservation: None,
                    capacity: taken.clone(),
                    limited: taken,
                };
                let mut all = shape.split_by_supply(&daemons, snapshot, &reservations, now);
                for shape in &mut all {
                    let mut net = instance_type.allocatable.clone();
                    net.subtract(&shape.overhead.requests);
                    shape.net = problem.axes.supply_of(&net);
                }
                all
            })
            .collect();
        // Most types define the same labels as the previous one.
        let chunks = shapes.chunk_by(|one, other| one.label_keys().eq(other.label_keys()));
        let keys = chunks.flat_map(|alike| alike[0].label_keys());
        let mut by_least: Vec<TypeIndex> = shapes.keys().collect();
        by_least.retain(|shape| !shapes[*shape].offers.is_empty());
        by_least.sort_by_key(|shape| shapes[*shape].offers[0].price);
        let nets = by_least.iter().map(|shape| shapes[*shape].net.as_ref());
        Self {
            pool,
            fault,
            zone_ids: catalog.zone_ids(),
            limits,
            side,
            by_price: offerings_by_price(&shapes),
            most_by_least: running_max_per_resource(nets),
            by_least,
            most: max_per_resource(shapes.iter().filter_map(|shape| shape.net.as_ref())),
            keys: keys.collect(),
            reservations,
            shapes,
        }
    }

    /// Returns why no pod can use the pool: its node class, or its own requirements. `None` if pods
    /// can use it.
    pub(crate) fn unusable(&self) -> Option<Rejection> {
        let text = "no instance type satisfies the pool's own requirements";
        match self.fault {
            Some(fault) => Some(RejectionCode::NodeClass.with_message(fault)),
            None if self.shapes.is_empty() => Some(RejectionCode::Requirements.with_message(text)),
            None => None,
        }
    }

    /// Returns the types with offerings, by lowest price. Types at the start that are too small for
    /// this demand are skipped.
    pub(crate) fn types_by_price_for(&self, demand: &[i64]) -> &[TypeIndex] {
        let first = self
            .most_by_least
            .partition_point(|maximum| maximum.is_empty() || !fits(maximum, demand));
        &self.by_least[first..]
    }

    /// Returns the required labels of a node for these pods, or the incompatibility. `relaxed`
    /// treats `PreferNoSchedule` as a preference. Source: spec/scheduling.md §2.5, §2.7, §2.8.
    pub(crate) fn admitted_labels(
        &self,
        wants: &NodeRequirements<'_>,
        alternative: &Requirements,
        relaxed: bool,
    ) -> Result<Requirements, Incompatibility> {
        let taints = self
            .pool
            .taints
            .iter()
            .filter(|taint| !(relaxed && taint.effect == Effect::PreferNoSchedule));
        if let Some(taint) = first_untolerated(taints, wants.tolerations) {
            return Err(Incompatibility::Taint(taint.clone()));
        }
        self.side.check_compatible(alternative, true).map_err(Incompatibility::Label)?;
        let mut labels = select_keys(&self.side, |key| alternative.get(key).is_some());
        labels.add_all(alternative);
        restrict_zones(&mut labels, self.zone_ids);
        Ok(labels)
    }

    /// Returns the offerings that are compatible with pods that require these labels.
    pub(crate) fn compatible_offerings(
        &self,
        wants: &NodeRequirements<'_>,
        agents: &ConstrainedDaemons<'_>,
        labels: &Requirements,
    ) -> CompatibleOfferings {
        let type_labels = type_requirements(labels);
        let defined = select_keys(&type_labels, |key| self.keys.contains(key));
        let asks = Asks::from_labels(labels);
        let masks: IndexVec<TypeIndex, u64> = self
            .shapes
            .iter()
            .map(|shape| {
                match self.daemons_are_compatible(shape, wants, agents, labels)
                    && self.has_free_ports(shape, wants, agents, labels)
                {
                    true => shape.matching_offerings(&defined, &asks),
                    false => 0,
                }
            })
            .collect();
        let open = type_labels
            .iter()
            .filter(|(key, _)| self.leaves_open(key, &masks))
            .map(|(key, requirement)| (key.to_owned(), requirement.clone()))
            .collect();
        CompatibleOfferings { masks, open }
    }

    /// Returns labels that pool and pods leave open and that must be set: the first allowed value.
    pub(crate) fn labels_to_set(&self, rows: &[&CompatibleOfferings]) -> Labels {
        let mut open = select_keys(&self.side, |key| {
            let open = !is_well_known(key) && !self.keys.contains(key) && !is_pool_label(key);
            open || is_launch_label(key)
        });
        for (key, requirement) in rows.iter().flat_map(|row| &row.open) {
            if !is_well_known(key) || is_launch_label(key) {
                open.add(key, requirement.clone());
            }
        }
        open.iter()
            .filter_map(|(key, requirement)| {
                let value = match is_launch_label(key) {
                    true => self.launch_label(key, requirement),
                    false => requirement.any_value(),
                };
                Some((key.to_owned(), value?))
            })
            .collect()
    }

    /// Returns the labels to set on a node planned as a type, including those of its reservation.
    pub(crate) fn launch_labels(&self, rows: &[&CompatibleOfferings], shape: TypeIndex) -> Labels {
        let mut labels = self.labels_to_set(rows);
        if let Some(reservation) = self.shapes[shape].reservation {
            labels.extend(self.reservations[reservation].node_labels());
        }
        labels
    }

    /// Returns the value of a label that the launch determines: the last value that types and
    /// requirements allow. For tenancies, this is the one without extra cost.
    fn launch_label(&self, key: &str, wanted: &Requirement) -> Option<String> {
        let mut of_types =
            self.shapes.iter().filter_map(|shape| shape.instance_type.requirements.get(key));
        let values = of_types.find_map(Requirement::values)?;
        values.iter().rev().find(|value| wanted.allows_value(value)).cloned()
    }

    /// Returns the DaemonSet of a type that conflicts with pods by anti-affinity.
    pub(crate) fn blocking_daemon(
        &self,
        shape: &TypeOption<'_>,
        wants: &NodeRequirements<'_>,
        agents: &ConstrainedDaemons<'_>,
        labels: &Requirements,
    ) -> Option<DaemonIndex> {
        let overhead = shape.overhead.agents.iter();
        let overhead: Vec<DaemonOnType> = overhead
            .filter(|overhead| !agents.is_excluded(overhead, |key| labels.get(key)))
            .copied()
            .collect();
        wants.company.blocking_daemon(&overhead, |key| self.has_label(shape, key))
    }

    /// Returns whether no DaemonSet of a type uses a host port of these pods on nodes with these
    /// labels.
    pub(crate) fn has_free_ports(
        &self,
        shape: &TypeOption<'_>,
        wants: &NodeRequirements<'_>,
        agents: &ConstrainedDaemons<'_>,
        labels: &Requirements,
    ) -> bool {
        let overhead = &shape.overhead;
        !have_port_conflict(wants.ports, &overhead.ports)
            || !have_port_conflict(wants.ports, &overhead.settled_ports)
                && !overhead.agents.iter().any(|constrained| {
                    have_port_conflict(wants.ports, agents.host_ports(constrained.agent))
                        && !agents.is_excluded(constrained, |key| labels.get(key))
                })
    }

    fn daemons_are_compatible(
        &self,
        shape: &TypeOption<'_>,
        wants: &NodeRequirements<'_>,
        agents: &ConstrainedDaemons<'_>,
        labels: &Requirements,
    ) -> bool {
        self.blocking_daemon(shape, wants, agents, labels).is_none()
            && wants.company.is_satisfied(&shape.overhead.agents, |key| self.has_label(shape, key))
    }

    /// Returns whether the pool alone sets a label, and thus chooses one of several values.
    pub(crate) fn is_pool_choice(&self, key: &str) -> bool {
        let values = self.side.get(key).and_then(Requirement::values);
        let several = values.is_some_and(|values| values.len() > 1);
        several && !is_well_known(key) && !self.keys.contains(key) && !is_pool_label(key)
    }

    /// Returns whether neither the pool nor any of its types defines a pool label.
    pub(crate) fn is_undefined(&self, key: &str) -> bool {
        !is_well_known(key) && self.side.get(key).is_none() && !self.keys.contains(key)
    }

    /// Returns whether nodes of a type have a label, if known.
    fn has_label(&self, shape: &TypeOption<'_>, key: &str) -> Option<bool> {
        if OF_RESERVATIONS.contains(&key) {
            return Some(shape.reservation.is_some());
        }
        let requirement = shape.instance_type.requirements.get(key);
        if requirement.and_then(Requirement::values).is_some() || !is_type_label(key) {
            return Some(true);
        }
        match (requirement, self.side.get(key)) {
            (None, Some(side)) if !is_well_known(key) && side.values().is_some() => Some(true),
            (None, None) => Some(false),
            _ => None,
        }
    }

    /// Returns whether nodes of a type satisfy label requirements, as far as known.
    pub(crate) fn label_match(&self, shape: &TypeOption<'_>, wanted: &Requirements) -> LabelMatch {
        let asks = Asks::from_labels(wanted);
        let mut pass = Match::Yes;
        for (key, wanted) in wanted.iter().filter(|(key, _)| is_type_label(key)) {
            let merged = merged_requirement(&self.side, shape.instance_type, key);
            let merged = merged.unwrap_or_else(Requirement::does_not_exist);
            let all = merged.values().filter(|values| !values.is_empty());
            pass = pass.min(match (merged.operator(), all) {
                (Operator::DoesNotExist, _) => Match::from_bool(wanted.allows_absence()),
                (_, Some(all)) if all.iter().all(|value| wanted.allows_value(value)) => Match::Yes,
                _ => match merged.has_intersection(wanted) {
                    true => Match::Maybe,
                    false => Match::No,
                },
            });
        }
        LabelMatch { pass, offers: shape.allowed_offerings(&asks) }
    }

    /// Returns whether the pool leaves a label open, and at least one of these types also leaves it
    /// open.
    fn leaves_open(&self, key: &str, masks: &[u64]) -> bool {
        let side = self.side.get(key);
        let is_absent = side.is_none() && !is_well_known(key);
        let mut in_question = self.shapes.iter().zip(masks).filter(|(_, mask)| **mask != 0);
        !side.is_some_and(is_decided)
            && in_question.any(|(shape, _)| {
                let requirement = shape.instance_type.requirements.get(key);
                !requirement.map_or(is_absent, is_decided)
            })
    }
}

impl<'a> TypeOption<'a> {
    /// Returns the options of a type with matching offerings: without reservation, then per
    /// reservation, separated by DaemonSets.
    fn split_by_supply(
        self,
        daemons: &PoolDaemons<'_>,
        snapshot: &Snapshot<'a>,
        reservations: &[Reservation],
        now: Timestamp,
    ) -> Vec<Self> {
        let asks = Asks::from_labels(daemons.side);
        let instance_type = self.instance_type;
        let selection = daemons.of_type(instance_type);
        let varies = selection.iter().any(|(_, settled)| !settled);
        let mut sorted: BTreeMap<(Option<usize>, Option<DaemonSelection>), Vec<&'a Offering>> =
            BTreeMap::new();
        for offering in instance_type
            .offerings
            .iter()
            .filter(|offering| offering.available && asks.allows(offering))
        {
            let mut place = None;
            if let Some(reservation) = &offering.reservation {
                let found = reservations.binary_search_by(|other| other.id.cmp(&reservation.id));
                place = found.ok().filter(|_| reservation.is_open(now));
                if place.is_none() {
                    continue;
                }
            }
            // DaemonSets of each offering, if the DaemonSets depend on the offering.
            let of_offering =
                varies.then(|| daemons.of_offering(&selection, instance_type, offering));
            let key = (place, of_offering);
            sorted.entry(key).or_default().push(offering);
        }
        // Unavailable offerings are kept for reports.
        if sorted.keys().all(|(place, _)| place.is_some()) {
            sorted.insert((None, None), Vec::new());
        }
        let first = self.capacity.len() - reservations.len();
        let value_of = |key: &str| daemons.side.get(key).and_then(Requirement::any_value);
        let class = value_of(NODE_CLASS).map(NodeClassName);
        let pool = value_of(POOL).map(PoolName);
        let mut sorted: Vec<_> = sorted.into_iter().collect();
        sorted.sort_by_key(|((place, _), _)| place.map(|index| reservations[index].rank()));
        sorted
            .into_iter()
            .map(|((place, of_offering), offers)| {
                let selection = of_offering.as_ref().unwrap_or(&selection);
                let mut option = self.clone();
                option.reservation = place;
                option.overhead = daemons.overhead_on(selection, instance_type, &offers);
                if let Some(place) = place {
                    option.capacity[first + place] = 1;
                    option.limited.clone_from(&option.capacity);
                }
                option.set_offerings(offers, pool.as_ref(), class.as_ref(), snapshot.holds, now);
                option
            })
            .collect()
    }

    /// Adds these offerings, separated into available and unavailable ones.
    fn set_offerings(
        &mut self,
        mut wanted: Vec<&'a Offering>,
        pool: Option<&PoolName>,
        class: Option<&NodeClassName>,
        holds: &UnavailableOfferings,
        now: Timestamp,
    ) {
        wanted.sort_by_key(|offering| (offering.price, &offering.zone, offering.capacity_type));
        let (held, offers) = wanted
            .into_iter()
            // Usually no offering is unavailable, and a plan checks every offering.
            .partition(|offering| {
                !holds.is_empty()
                    && (holds.is_held(class, &self.offering_key(offering), now)
                        || pool.is_some_and(|pool| holds.is_zone_excluded(pool, &offering.zone)))
            });
        (self.held, self.offers) = (held, offers);
        self.offers.truncate(OFFERS_MAX);
    }

    /// Returns the key of one offering of this type.
    pub(crate) fn offering_key(&self, offering: &Offering) -> OfferingKey {
        offering.key(&self.instance_type.name)
    }

    /// Returns whether the type has enough resources for a demand after DaemonSets.
    pub(crate) fn can_hold(&self, demand: &[i64]) -> bool {
        self.net.as_deref().is_some_and(|net| fits(net, demand))
    }

    /// Returns whether the labels of the type can satisfy the requirements; `of_types` is the
    /// result of [`type_requirements`].
    pub(crate) fn matches_labels(&self, of_types: &Requirements) -> Result<(), Incompatible> {
        self.instance_type.requirements.check_intersection(of_types)
    }

    /// Returns the labels that the type defines.
    fn label_keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.instance_type.requirements.iter().map(|(key, _)| key)
    }

    fn matching_offerings(&self, of_types: &Requirements, asks: &Asks<'_>) -> u64 {
        match self.matches_labels(of_types) {
            Ok(()) => self.allowed_offerings(asks),
            Err(_) => 0,
        }
    }

    /// All offerings of the type, one bit each.
    pub(crate) fn all_offerings(&self) -> u64 {
        let unused = OFFERS_MAX.saturating_sub(self.offers.len());
        let unused = u32::try_from(unused).ok();
        unused.and_then(|unused| u64::MAX.checked_shr(unused)).unwrap_or(0)
    }

    /// Returns the matching offerings.
    fn allowed_offerings(&self, asks: &Asks<'_>) -> u64 {
        self.offers
            .iter()
            .enumerate()
            .map(|(bit, offering)| u64::from(asks.allows(offering)) << bit)
            .fold(0, |all, bit| all | bit)
    }

    /// Returns whether a claim planned as one option may be launched as the other: neither is
    /// reserved, and both have the same DaemonSets.
    pub(crate) fn is_interchangeable(&self, other: &Self) -> bool {
        let bought = self.reservation.is_none() && other.reservation.is_none();
        bought && self.overhead.agents == other.overhead.agents
    }

    /// Returns the lowest price of these offerings.
    pub(crate) fn lowest_price(&self, mask: u64) -> Option<f64> {
        let offer = self.offers.get(mask.trailing_zeros() as usize)?;
        Some(offer.price.usd_per_h())
    }

    /// Returns the cheapest of these offerings.
    pub(crate) fn cheapest_offerings(&self, mask: u64) -> u64 {
        let Some(first) = self.offers.get(mask.trailing_zeros() as usize) else {
            return 0;
        };
        (0..self.offers.len())
            .filter(|bit| mask >> bit & 1 == 1 && self.offers[*bit].price == first.price)
            .fold(0, |all, bit| all | 1 << bit)
    }
}

fn offerings_by_price(shapes: &IndexVec<TypeIndex, TypeOption<'_>>) -> Vec<(TypeIndex, usize)> {
    let mut all: Vec<(TypeIndex, usize)> = shapes
        .iter_enumerated()
        .flat_map(|(index, shape)| (0..shape.offers.len()).map(move |bit| (index, bit)))
        .collect();
    // Type options are sorted by name, so the order of their indices is that of their names.
    all.sort_by_cached_key(|(index, bit)| {
        let offer = shapes[*index].offers[*bit];
        (offer.price, &offer.zone, *index, offer.capacity_type)
    });
    all
}

/// Requirements on labels that an offering decides.
struct Asks<'l> {
    zone: Option<&'l Requirement>,
    capacity_type: Option<&'l Requirement>,
    /// Requirements on reservation labels, which are rare.
    reservation: Vec<(&'static str, &'l Requirement)>,
}

impl<'l> Asks<'l> {
    fn from_labels(labels: &'l Requirements) -> Self {
        let reservation = OF_RESERVATIONS.into_iter();
        let reservation = reservation.filter_map(|key| Some((key, labels.get(key)?)));
        Self {
            zone: labels.get(ZONE),
            capacity_type: labels.get(CAPACITY_TYPE),
            reservation: reservation.collect(),
        }
    }

    fn allows(&self, offering: &Offering) -> bool {
        let kind = offering.capacity_type.as_str();
        let mut by_reservation = self.reservation.iter();
        self.zone.is_none_or(|wanted| wanted.allows_value(offering.zone.as_str()))
            && self.capacity_type.is_none_or(|wanted| wanted.allows_value(kind))
            && by_reservation.all(|(key, wanted)| wanted.allows_label(offering.label_value(key)))
    }
}

/// Returns whether an offering satisfies label requirements.
pub(crate) fn offering_matches(labels: &Requirements, offering: &Offering) -> bool {
    Asks::from_labels(labels).allows(offering)
}
