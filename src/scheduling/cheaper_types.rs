//! Explains why a node is not launched as a cheaper instance type: counts the types by what rejects
//! them.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use jiff::Timestamp;

use crate::model::id::{PodKey, TypeName};
use crate::model::instance::{Offering, Price};
use crate::model::pod::Pod;
use crate::model::requirement::Requirements;
use crate::scheduling::NewNodeClaim;
use crate::scheduling::index::{PodClassIndex, TemplateIndex};
use crate::scheduling::packing::launch_options::{Ledger, Ledgers};
use crate::scheduling::problem::resource_vector::{add_demand, copies_that_fit};
use crate::scheduling::problem::{Problem, have_port_conflict};
use crate::scheduling::rejection::{bounded_text, format_quantity};
use crate::scheduling::supply::min_values::template_of;
use crate::scheduling::supply::node_template::{NodeTemplate, TypeOption, offering_matches};
use crate::scheduling::supply::offering_labels::type_requirements;
use crate::state::snapshot::Snapshot;

/// Why a cheaper type is not used: its first obstacle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TypeRejection {
    /// The type does not satisfy a label requirement of the pod.
    Label(String),
    /// A DaemonSet pod on nodes of the type uses one of the pod's host ports.
    Ports,
    /// The type has too little of a resource after DaemonSets and overhead.
    Resource(String),
    /// The type has no cheaper offering in a suitable zone and capacity type.
    Offering,
    /// The matching offerings of the type are unavailable.
    Held,
    /// The type fits the pod, but not all pods of the node.
    Together {
        /// Number of pods of the node.
        pods: usize,
    },
    /// The type exceeds the limits of the pool.
    Limit,
    /// The type has no obstacle: the plan as a whole is cheaper, or a preference or topology rule
    /// decides.
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
            Self::Held => "offerings_unavailable",
            Self::Together { .. } => "together",
            Self::Limit => "limit",
            Self::Plan => "plan",
        }
    }
}

/// Cheaper types with the same obstacle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cheaper {
    /// The obstacle.
    pub obstacle: TypeRejection,
    /// Number of types.
    pub types: usize,
    /// The type that is closest to fitting. If the distance is unknown, the first type by name.
    pub nearest: TypeName,
    /// The requested quantity, and the quantity of the closest type; `cpu` in thousandths.
    pub amounts: Option<(i64, i64)>,
}

/// Returns the types of the pool that have a cheaper offering than the planned one, grouped by the
/// first obstacle that rejects the type for a pod. The result is empty for a claim of a different
/// snapshot.
pub fn list_cheaper_types(
    snapshot: &Snapshot<'_>,
    claim: &NewNodeClaim,
    pod: &PodKey,
    now: Timestamp,
) -> Vec<Cheaper> {
    let Some(pool) = snapshot.cluster.pool(claim.pool.as_str()) else {
        return Vec::new();
    };
    let mut pods: Vec<&Pod> = snapshot.pending.clone();
    pods.retain(|pod| claim.pods.binary_search(&pod.key).is_ok());
    let problem = Problem::new(&pods, snapshot);
    let template = template_of(pool, &problem, snapshot, now);
    let ledgers = Ledgers::new(std::slice::from_ref(&template), snapshot);
    let mut weighed = Weighed {
        ledger: ledgers.ledger_for(TemplateIndex(0)),
        price: Price::default(),
        whole: Vec::new(),
        template: &template,
        problem: &problem,
    };
    for class in &problem.classes {
        weighed.whole.resize(class.demand.len(), 0);
        add_demand(&mut weighed.whole, &class.demand, class.pods.len() as u64);
    }
    let class =
        problem.classes.position(|class| class.pods.iter().any(|member| member.key == *pod));
    match (class, weighed.planned_price(claim)) {
        (Some(class), Some(price)) => {
            weighed.price = price;
            weighed.cheaper_by_obstacle(class)
        }
        _ => Vec::new(),
    }
}

struct Weighed<'w> {
    problem: &'w Problem<'w>,
    template: &'w NodeTemplate<'w>,
    ledger: Ledger,
    price: Price,
    /// Total requests of the pods of the claim.
    whole: Vec<i64>,
}

impl Weighed<'_> {
    /// Returns the planning price of the first offering of a claim.
    fn planned_price(&self, claim: &NewNodeClaim) -> Option<Price> {
        let (first, _) = claim.offerings.first()?;
        let shapes = self.template.shapes.iter();
        shapes
            .filter(|shape| shape.instance_type.name == first.instance_type)
            .flat_map(|shape| &shape.offers)
            .find(|offer| offer.zone == first.zone && offer.capacity_type == first.capacity_type)
            .map(|offer| offer.price)
    }

    fn cheaper_by_obstacle(&self, class: PodClassIndex) -> Vec<Cheaper> {
        let mut all: BTreeMap<TypeRejection, Cheaper> = BTreeMap::new();
        for shape in &self.template.shapes {
            let mut offers = shape.offers.iter().chain(&shape.held);
            if !offers.any(|offer| offer.price < self.price) {
                continue;
            }
            let obstacle = self.obstacle_of(shape, class);
            let amounts = match &obstacle {
                TypeRejection::Resource(name) => self.amounts_of(shape, class, name),
                _ => None,
            };
            let name = &shape.instance_type.name;
            let cheaper = all.entry(obstacle.clone()).or_insert_with(|| Cheaper {
                obstacle,
                types: 0,
                nearest: name.clone(),
                amounts,
            });
            cheaper.types += 1;
            if amounts.map(|amount| amount.1) > cheaper.amounts.map(|amount| amount.1) {
                (cheaper.nearest, cheaper.amounts) = (name.clone(), amounts);
            }
        }
        all.into_values().collect()
    }

    fn amounts_of(
        &self,
        shape: &TypeOption<'_>,
        class: PodClassIndex,
        name: &str,
    ) -> Option<(i64, i64)> {
        let demand = &self.problem.classes[class].demand;
        let axis = (0..demand.len())
            .find(|axis| bounded_text(self.problem.axes.resource_name(*axis)) == name)?;
        Some((demand[axis], shape.net.as_ref().map_or(0, |net| net[axis])))
    }

    /// Returns the obstacle of a type. If there are several alternatives, the obstacle of the
    /// closest alternative is reported.
    fn obstacle_of(&self, shape: &TypeOption<'_>, class: PodClassIndex) -> TypeRejection {
        let class = &self.problem.classes[class];
        let kind = self.problem.without_preferences(class.kind);
        let wants = self.problem.wants_of(kind);
        let alternatives = wants.alternatives.iter();
        let admitted = alternatives
            .filter_map(|alternative| self.template.admitted_labels(wants, alternative, true).ok());
        let stops = admitted.map(|labels| {
            if have_port_conflict(wants.ports, &shape.overhead.ports) {
                return TypeRejection::Ports;
            }
            self.first_obstacle(shape, &labels, &class.demand)
        });
        stops.max().unwrap_or(TypeRejection::Label(String::new()))
    }

    fn first_obstacle(
        &self,
        shape: &TypeOption<'_>,
        labels: &Requirements,
        demand: &[i64],
    ) -> TypeRejection {
        if let Err(no) = shape.matches_labels(&type_requirements(labels)) {
            return TypeRejection::Label(bounded_text(&no.key));
        }
        let net = shape.net.as_deref();
        if net.is_none_or(|net| copies_that_fit(net, demand) == 0) {
            let axis = (0..demand.len())
                .find(|axis| net.is_none_or(|net| demand[*axis] > net[*axis]))
                .unwrap_or(0);
            return TypeRejection::Resource(bounded_text(self.problem.axes.resource_name(axis)));
        }
        if !self.has_cheaper(&shape.offers, labels) {
            return match self.has_cheaper(&shape.held, labels) {
                true => TypeRejection::Held,
                false => TypeRejection::Offering,
            };
        }
        if net.is_none_or(|net| copies_that_fit(net, &self.whole) == 0) || !self.suits_all(shape) {
            let pods = self.problem.classes.iter().map(|class| class.pods.len());
            return TypeRejection::Together { pods: pods.sum() };
        }
        if self.ledger.allowed_copies(&shape.limited) == 0 {
            return TypeRejection::Limit;
        }
        TypeRejection::Plan
    }

    /// Returns whether a type has a cheaper offering that suits every pod of the claim.
    fn suits_all(&self, shape: &TypeOption<'_>) -> bool {
        self.problem.classes.iter().all(|class| {
            let kind = self.problem.without_preferences(class.kind);
            let wants = self.problem.wants_of(kind);
            let mut alternatives = wants.alternatives.iter();
            alternatives.any(|alternative| {
                self.template.admitted_labels(wants, alternative, true).is_ok_and(|labels| {
                    shape.matches_labels(&type_requirements(&labels)).is_ok()
                        && !have_port_conflict(wants.ports, &shape.overhead.ports)
                        && self.has_cheaper(&shape.offers, &labels)
                })
            })
        })
    }

    /// Returns whether one of these offerings is cheaper and satisfies the requirements.
    fn has_cheaper(&self, offers: &[&Offering], labels: &Requirements) -> bool {
        let mut offers = offers.iter();
        offers.any(|offer| offer.price < self.price && offering_matches(labels, offer))
    }
}

impl Display for Cheaper {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { obstacle, types, nearest, amounts } = self;
        write!(f, "{types} ({nearest}, …) ")?;
        match obstacle {
            TypeRejection::Label(key) => write!(f, "do not satisfy the requirement on {key}"),
            TypeRejection::Ports => {
                f.write_str("have a DaemonSet pod that uses one of its host ports")
            }
            TypeRejection::Resource(name) => {
                write!(f, "have too little {name} after DaemonSets and overhead")?;
                let Some((asked, available)) = *amounts else {
                    return Ok(());
                };
                let [asked, available] = [asked, available].map(|it| format_quantity(name, it));
                write!(f, ": at most {available}, {asked} needed")
            }
            TypeRejection::Offering => {
                f.write_str("have no cheaper offering in a suitable zone and capacity type")
            }
            TypeRejection::Held => f.write_str("are unavailable after a failed launch"),
            TypeRejection::Together { pods } => {
                write!(f, "fit this pod alone, but not all {pods} pods of the node")
            }
            TypeRejection::Limit => f.write_str("exceed the limits of the pool"),
            TypeRejection::Plan => f.write_str(
                "fit, but make the plan more expensive, or conflict with preferences or topology",
            ),
        }
    }
}
