//! Why a node is not made as a cheaper type: what stops each of them, counted.
//! It must not know how the claim came about, only what it is.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use jiff::Timestamp;

use crate::model::id::{PodKey, TypeName};
use crate::model::instance::{Offering, Price};
use crate::model::pod::Pod;
use crate::model::requirement::Requirements;
use crate::scheduling::NewNodeClaim;
use crate::scheduling::packing::launch_options::{Ledger, Ledgers};
use crate::scheduling::problem::resource_vector::times;
use crate::scheduling::problem::{Problem, clash};
use crate::scheduling::rejection::{part, shown};
use crate::scheduling::supply::min_values::widen;
use crate::scheduling::supply::node_template::{NodeTemplate, TypeOption, of_types, sells};
use crate::state::snapshot::Snapshot;

/// What stops a cheaper type first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TypeRejection {
    /// A label of it is not as the pod wants it.
    Label(String),
    /// A daemon of it binds one of the pod's host ports.
    Ports,
    /// It has too little of a resource after daemons and overhead.
    Resource(String),
    /// It is not sold so cheaply where and how the pod wants it.
    Offering,
    /// What would do is held down after a refusal.
    Held,
    /// It would do for the pod, but not for all that the node is made for.
    Together {
        /// How many pods that is.
        pods: usize,
    },
    /// The pool's limits leave no room for it.
    Limit,
    /// Nothing: the plan as a whole is cheaper so, or a wish or a rule about places decides.
    Plan,
}

impl TypeRejection {
    /// The spelling in JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Label(_) => "label",
            Self::Ports => "host_ports",
            Self::Resource(_) => "resource",
            Self::Offering => "offering",
            Self::Held => "held_down",
            Self::Together { .. } => "together",
            Self::Limit => "limit",
            Self::Plan => "plan",
        }
    }
}

/// Cheaper types that one thing stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cheaper {
    /// What stops them.
    pub obstacle: TypeRejection,
    /// How many they are.
    pub types: usize,
    /// The one that comes nearest, or else the first by name.
    pub nearest: TypeName,
    /// What is asked of the resource, and what the nearest has; `cpu` in thousandths.
    pub amounts: Option<(i64, i64)>,
}

/// The types of the claim's pool that some offering makes cheaper than what the claim is planned
/// as, by what stops them for one of its pods first. Nothing for a claim that is not of this
/// snapshot.
pub fn cheaper(
    snapshot: &Snapshot<'_>,
    claim: &NewNodeClaim,
    pod: &PodKey,
    now: Timestamp,
) -> Vec<Cheaper> {
    let Some(pool) = snapshot.cluster.pool(claim.pool.as_str()) else {
        return Vec::new();
    };
    let of_claim = |own: &&&Pod| claim.pods.binary_search(&own.key).is_ok();
    let pods: Vec<&Pod> = snapshot.pending.iter().filter(of_claim).copied().collect();
    let problem = Problem::new(&pods, snapshot);
    let mut shelf = NodeTemplate::new(pool, &problem, snapshot, now);
    widen(&mut shelf, snapshot.cluster.scheduling.min_values);
    let ledgers = Ledgers::new(std::slice::from_ref(&shelf), snapshot);
    let mut weighed = Weighed {
        ledger: ledgers.of(0),
        price: Price::default(),
        whole: vec![0; problem.classes.first().map_or(0, |own| own.demand.len())],
        shelf: &shelf,
        problem: &problem,
    };
    for class in &problem.classes {
        let pods = i64::try_from(class.pods.len()).unwrap_or(i64::MAX);
        for (sum, amount) in weighed.whole.iter_mut().zip(&class.demand) {
            *sum = sum.saturating_add(amount.saturating_mul(pods));
        }
    }
    let is_of = |own: &&Pod| own.key == *pod;
    let mut classes = problem.classes.iter();
    let class = classes.position(|class| class.pods.iter().any(is_of));
    match (class, weighed.planned(claim)) {
        (Some(class), Some(price)) => {
            weighed.price = price;
            weighed.all(class)
        }
        _ => Vec::new(),
    }
}

struct Weighed<'w> {
    problem: &'w Problem<'w>,
    shelf: &'w NodeTemplate<'w>,
    ledger: Ledger,
    price: Price,
    /// What all pods of the claim ask for together.
    whole: Vec<i64>,
}

impl Weighed<'_> {
    /// The price of a claim's first offering, as the pool plans with it.
    fn planned(&self, claim: &NewNodeClaim) -> Option<Price> {
        let (first, _) = claim.offerings.first()?;
        let shapes = self.shelf.shapes.iter();
        let shapes = shapes.filter(|own| own.instance_type.name == first.instance_type);
        let mut offers = shapes.flat_map(|shape| &shape.offers);
        let own = |offer: &&&Offering| {
            offer.zone == first.zone && offer.capacity_type == first.capacity_type
        };
        offers.find(own).map(|offer| offer.price)
    }

    fn all(&self, class: usize) -> Vec<Cheaper> {
        let is_cheaper = |offer: &Offering| offer.price < self.price;
        let mut all: BTreeMap<TypeRejection, Cheaper> = BTreeMap::new();
        for shape in &self.shelf.shapes {
            if !shape
                .offers
                .iter()
                .chain(&shape.held)
                .any(|own| is_cheaper(own))
            {
                continue;
            }
            let obstacle = self.obstacle(shape, class);
            let amounts = match &obstacle {
                TypeRejection::Resource(name) => self.amounts(shape, class, name),
                _ => None,
            };
            let name = &shape.instance_type.name;
            let own = all.entry(obstacle.clone()).or_insert_with(|| Cheaper {
                obstacle,
                types: 0,
                nearest: name.clone(),
                amounts,
            });
            own.types += 1;
            if amounts.map(|own| own.1) > own.amounts.map(|own| own.1) {
                (own.nearest, own.amounts) = (name.clone(), amounts);
            }
        }
        all.into_values().collect()
    }

    fn amounts(&self, shape: &TypeOption<'_>, class: usize, name: &str) -> Option<(i64, i64)> {
        let demand = &self.problem.classes[class].demand;
        let axis = (0..demand.len()).find(|axis| part(self.problem.axes.name(*axis)) == name)?;
        Some((demand[axis], shape.net.as_ref().map_or(0, |net| net[axis])))
    }

    /// What stops a type; of the alternatives of a class the one that comes furthest is told.
    fn obstacle(&self, shape: &TypeOption<'_>, class: usize) -> TypeRejection {
        let own = &self.problem.classes[class];
        let wants = self.problem.wants_of(self.problem.without_wishes(own.kind));
        let alternatives = wants.alternatives.iter();
        let admitted = alternatives.filter_map(|own| self.shelf.admit(wants, own, true).ok());
        let stops = admitted.map(|labels| {
            if clash(wants.ports, &shape.crew.ports) {
                return TypeRejection::Ports;
            }
            self.stops(shape, &labels, &own.demand)
        });
        stops.max().unwrap_or(TypeRejection::Label(String::new()))
    }

    fn stops(
        &self,
        shape: &TypeOption<'_>,
        labels: &Requirements,
        demand: &[i64],
    ) -> TypeRejection {
        if let Err(no) = shape.suits(&of_types(labels)) {
            return TypeRejection::Label(part(&no.key));
        }
        let net = shape.net.as_deref();
        if net.is_none_or(|net| times(net, demand) == 0) {
            let lacks = |axis: &usize| net.is_none_or(|net| demand[*axis] > net[*axis]);
            let axis = (0..demand.len()).find(lacks).unwrap_or(0);
            return TypeRejection::Resource(part(self.problem.axes.name(axis)));
        }
        let would_do = |offer: &Offering| offer.price < self.price && sells(labels, offer);
        if !shape.offers.iter().any(|offer| would_do(offer)) {
            return match shape.held.iter().any(|offer| would_do(offer)) {
                true => TypeRejection::Held,
                false => TypeRejection::Offering,
            };
        }
        if net.is_none_or(|net| times(net, &self.whole) == 0) || !self.suits_all(shape) {
            let pods = self.problem.classes.iter().map(|class| class.pods.len());
            return TypeRejection::Together { pods: pods.sum() };
        }
        if self.ledger.copies(&shape.limited) == 0 {
            return TypeRejection::Limit;
        }
        TypeRejection::Plan
    }

    /// Whether something cheaper of a type is as every pod of the claim wants it.
    fn suits_all(&self, shape: &TypeOption<'_>) -> bool {
        self.problem.classes.iter().all(|class| {
            let kind = self.problem.without_wishes(class.kind);
            let wants = self.problem.wants_of(kind);
            let mut alternatives = wants.alternatives.iter();
            alternatives.any(|own| {
                self.shelf.admit(wants, own, true).is_ok_and(|labels| {
                    let mut offers = shape.offers.iter();
                    shape.suits(&of_types(&labels)).is_ok()
                        && !clash(wants.ports, &shape.crew.ports)
                        && offers.any(|own| own.price < self.price && sells(&labels, own))
                })
            })
        })
    }
}

impl Display for Cheaper {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            obstacle,
            types,
            nearest,
            amounts,
        } = self;
        write!(f, "{types} ({nearest}, …) ")?;
        match obstacle {
            TypeRejection::Label(key) => write!(f, "do not have {key} as wanted"),
            TypeRejection::Ports => f.write_str("have a daemon that binds one of its host ports"),
            TypeRejection::Resource(name) => {
                write!(f, "have too little {name} after DaemonSets and overhead")?;
                match amounts {
                    Some((asked, most)) => {
                        let (asked, most) = (shown(name, *asked), shown(name, *most));
                        write!(f, ": {most} at most, needed is {asked}")
                    }
                    None => Ok(()),
                }
            }
            TypeRejection::Offering => {
                f.write_str("are not sold so cheaply where and how it wants")
            }
            TypeRejection::Held => f.write_str("are held down after a refusal"),
            TypeRejection::Together { pods } => {
                write!(
                    f,
                    "would do for it alone, but not for the node's {pods} pods"
                )
            }
            TypeRejection::Limit => f.write_str("are more than the pool's limits leave"),
            TypeRejection::Plan => f.write_str(
                "would do: the whole plan is cheaper so, or wishes and places of pods decide",
            ),
        }
    }
}
