//! Verifies that the checker can fail: for every rule, a manual plan that violates it and one that
//! does not. These tests do not call the scheduler.

mod results;
mod nodes;
mod planned_nodes;
mod pod_affinity;
mod topology_spread;

use outrigger::catalog::Catalog;
use outrigger::model::affinity::PodTerm;
use outrigger::model::id::{ObjectKey, PodKey};
use outrigger::model::instance::{CapacityType, OfferingKey, Price};
use outrigger::model::labels::{CAPACITY_TYPE, HOSTNAME, Labels, ZONE};
use outrigger::model::pod::Pod;
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::scheduling::rejection::RejectionDetail;
use outrigger::scheduling::{
    NewNodeClaim, PoolRejection, RejectionCode, Solution, UnschedulablePod,
};
use outrigger::state::snapshot::{ExistingNode, NodeRef};
use std::sync::Arc;

use super::checker::check_in_order;
use super::fixture::{DEFAULT, GIB, World, kwok_like, label, pod, room};
use super::missed_placements::Completeness;

/// One pool, two types with 1 and 2 CPUs, and nodes with 4 CPUs: `n0`, `n1` in zone a, `n2` in b.
fn base_world() -> World {
    let mut world = World {
        catalog: Catalog::new(kwok_like("amd64", &[1, 2], &["a", "b"])),
        rooms: vec![node("n0", "a"), node("n1", "a"), node("n2", "b")],
        ..World::default()
    };
    world.cluster.pools.push(Pool::new("general"));
    world
}

/// The base world without nodes.
fn world_without_nodes() -> World {
    World { rooms: Vec::new(), ..base_world() }
}

fn node(name: &str, zone: &str) -> ExistingNode {
    let free = Resources { cpu_milli: 4000, memory: 16 * GIB, pods: 10, ..Resources::default() };
    let mut room = room(name, free);
    Arc::make_mut(&mut room.labels).add(ZONE, Requirement::is_in([zone]));
    room
}

/// A small pod with the label `app`.
fn of_app(name: &str, app: &str) -> Pod {
    let mut pod = pod(name, 100, GIB / 8);
    pod.labels = Labels::from([label("app", app)]);
    pod
}

/// A small pod with the label `app`, bound to a node.
fn bound(name: &str, app: &str, node: &str) -> Pod {
    let mut pod = of_app(name, app);
    pod.node = Some(node.into());
    pod
}

fn with_affinity(mut pod: Pod, term: PodTerm) -> Pod {
    pod.affinity.push(term);
    pod
}

fn with_anti_affinity(mut pod: Pod, term: PodTerm) -> Pod {
    pod.anti_affinity.push(term);
    pod
}

fn requiring(key: &str, wanted: Requirement) -> Requirements {
    Requirements::from_iter([(key, wanted)])
}

fn key(name: &str) -> PodKey {
    ObjectKey::new(DEFAULT, name)
}

/// A manual plan. Its pods are bound in the order in which they are added.
struct Plan<'w> {
    world: &'w World,
    solution: Solution,
    order: Vec<PodKey>,
}

fn plan(world: &World) -> Plan<'_> {
    Plan { world, solution: Solution::default(), order: Vec::new() }
}

const ON_DEMAND: CapacityType = CapacityType::OnDemand;

impl Plan<'_> {
    /// Places pods on an existing node.
    fn place_on(mut self, node: &str, pods: &[&str]) -> Self {
        let host = NodeRef::Node(node.into());
        let keys: Vec<PodKey> = pods.iter().map(|name| key(name)).collect();
        self.order.extend(keys.iter().cloned());
        let placed = &mut self.solution.placed;
        match placed.iter_mut().find(|(node_ref, _)| *node_ref == host) {
            Some((_, placed_keys)) => placed_keys.extend(keys),
            None => placed.push((host, keys)),
        }
        for (_, pods) in placed {
            pods.sort();
        }
        self
    }

    /// Adds a claim of the pool `general` with the requests of these pods.
    fn claim(mut self, offerings: &[(&str, &str, CapacityType)], pods: &[&str]) -> Self {
        let mut requests = Resources::default();
        let mut keys: Vec<PodKey> = pods.iter().map(|name| key(name)).collect();
        self.order.extend(keys.iter().cloned());
        keys.sort();
        for pod in self.world.pods.iter().filter(|pod| keys.contains(&pod.key)) {
            requests.add(&pod.requests);
        }
        let offering = |(it, zone, capacity_type): &(&str, &str, CapacityType)| {
            let key = OfferingKey {
                instance_type: (*it).into(),
                zone: (*zone).into(),
                capacity_type: *capacity_type,
                reservation: None,
            };
            let price = self.world.catalog.offering(&key).map(|offering| offering.price);
            (key, price.unwrap_or_default())
        };
        let claim = NewNodeClaim {
            pool: "general".into(),
            offerings: offerings.iter().map(offering).collect(),
            labels: Labels::new(),
            requests,
            pods: keys,
        };
        self.solution.claims.push(claim);
        self
    }

    /// Adds a claim for one pod with the smallest type in one zone.
    fn small_claim(self, zone: &str, pod: &str) -> Self {
        self.claim(&[("c-1x-amd64", zone, ON_DEMAND)], &[pod])
    }

    /// Changes the last claim.
    fn edit_claim(mut self, edit: impl FnOnce(&mut NewNodeClaim)) -> Self {
        edit(self.solution.claims.last_mut().expect("a claim"));
        self
    }

    fn reject(mut self, pod: &str, code: RejectionCode) -> Self {
        self.solution.unplaced.push(UnschedulablePod {
            pod: key(pod),
            reasons: [PoolRejection {
                pool: Some("general".into()),
                code,
                miss: RejectionDetail::from_message("it does not fit"),
            }]
            .into(),
        });
        self
    }

    fn assert_accepted(self) {
        let checked = check_in_order(self.world, &self.solution, &self.order, Completeness::Claims);
        assert_eq!(checked, Ok(()), "{:#?}", self.solution);
    }

    fn assert_rejected(self, words: &str) {
        let why = check_in_order(self.world, &self.solution, &self.order, Completeness::Claims);
        let why = why.expect_err("a plan that violates a rule");
        assert!(why.contains(words), "{words:?} is not in {why:?}");
    }
}

/// A higher price than the given one.
fn more_expensive(price: Price) -> Price {
    Price::new(price.usd_per_h() * 1.5).expect("a price")
}

fn on_spot(zone: &str) -> [(&str, &str, CapacityType); 1] {
    [("c-1x-amd64", zone, CapacityType::Spot)]
}

fn capacity(value: &str) -> Requirements {
    requiring(CAPACITY_TYPE, Requirement::is_in([value]))
}

fn hostname(value: &str) -> Requirements {
    requiring(HOSTNAME, Requirement::is_in([value]))
}
