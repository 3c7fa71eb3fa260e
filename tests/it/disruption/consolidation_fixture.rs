//! A few nodes of test instance types with pods, and their consolidation.

use std::sync::Arc;

use outrigger::catalog::{Catalog, type_labels};
use outrigger::disruption::verdict::Verdict;
use outrigger::model::cluster::Cluster;
use outrigger::model::instance::{CapacityType, InstanceType, Offering, OfferingKey, Price};
use outrigger::model::labels::{
    ARCH, CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, Labels, OS, RESERVATION_ID, ZONE,
};
use outrigger::model::pod::Pod;
use outrigger::model::pool::{Pool, Reason};
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::reservation::Reservation;
use outrigger::model::watched_object::WatchedObject;
use outrigger::plan::{self, Plan};
use outrigger::state::State;

use super::fixture::{NOW, Scene, earlier, pod, pool};

pub(super) const ON_DEMAND: CapacityType = CapacityType::OnDemand;
pub(super) const SPOT: CapacityType = CapacityType::Spot;
pub(super) const RESERVED: CapacityType = CapacityType::Reserved;

const GIB: i64 = 1 << 30;

/// An offering of a type: capacity type, zone, and price in $/h.
pub(super) type OfferingSpec = (CapacityType, &'static str, f64);

/// A type with this number of cores, 4 GiB per core, and these offerings. The reservation of a
/// reserved offering is named after the type and has ten instances.
pub(super) fn instance_type(name: &str, cores: i64, offers: &[OfferingSpec]) -> InstanceType {
    let offering = |(capacity_type, zone, price): &OfferingSpec| Offering {
        zone: (*zone).into(),
        capacity_type: *capacity_type,
        price: Price::new(*price).expect("a price"),
        available: true,
        reservation: (*capacity_type == RESERVED)
            .then(|| Box::new(Reservation::new(&format!("cr-{name}"), 10))),
    };
    let offerings: Vec<Offering> = offers.iter().map(offering).collect();
    let mut requirements = Requirements::from_iter([
        (INSTANCE_TYPE, Requirement::is_in([name])),
        (ARCH, Requirement::is_in(["amd64"])),
        (OS, Requirement::is_in(["linux"])),
    ]);
    type_labels::complete_labels(&mut requirements, &offerings);
    let capacity = Resources {
        cpu_milli: 1000 * cores,
        memory: 4 * GIB * cores,
        pods: 100,
        ..Resources::default()
    };
    InstanceType {
        name: name.into(),
        requirements,
        allocatable: capacity.clone(),
        capacity,
        offerings,
    }
}

/// Types with 2, 4 and 8 cores in the zones `a` and `b`. A core costs 0.1 $/h on demand, and a
/// third of that on spot.
pub(super) fn sizes() -> Vec<InstanceType> {
    [("s2", 2, 0.2), ("s4", 4, 0.4), ("s8", 8, 0.8)]
        .map(|(name, cores, price)| {
            let offers =
                ["a", "b"].map(|zone| [(ON_DEMAND, zone, price), (SPOT, zone, price / 3.0)]);
            instance_type(name, cores, offers.as_flattened())
        })
        .into()
}

/// A pool with these capacity types.
pub(super) fn buying(name: &str, types: &[CapacityType]) -> Pool {
    let mut pool = pool(name);
    let types = types.iter().map(|capacity_type| capacity_type.as_str());
    pool.requirements.add(CAPACITY_TYPE, Requirement::is_in(types));
    pool
}

/// Nodes with their pods, and their consolidation.
pub(super) struct Fleet(pub(super) Scene);

impl Fleet {
    /// A fleet without nodes. The overhead price of nodes is zero, so that prices are exact.
    pub(super) fn new(types: Vec<InstanceType>, pools: Vec<Pool>) -> Self {
        let mut scene = Scene::new(pools);
        scene.state.apply_catalog(Arc::new(Catalog::new(types)));
        let mut fleet = Self(scene);
        fleet.configure(|cluster| cluster.scheduling.node_overhead_price = Price::default());
        fleet
    }

    /// A fleet with types of three sizes and one on-demand pool.
    pub(super) fn plain() -> Self {
        Self::new(sizes(), vec![buying("general", &[ON_DEMAND])])
    }

    pub(super) fn configure(&mut self, change: impl FnOnce(&mut Cluster)) {
        let mut cluster = Cluster::clone(&self.0.state.cluster);
        change(&mut cluster);
        self.0.state.apply_configuration(Arc::new(cluster));
    }

    /// Changes the first pool.
    pub(super) fn pool(&mut self, change: impl FnOnce(&mut Pool)) {
        self.configure(|cluster| change(&mut cluster.pools[0]));
    }

    /// Adds an on-demand node of the pool `general` and of this type, in zone `a`.
    pub(super) fn node(&mut self, name: &str, of: &str) {
        self.node_of(name, "general", (of, "a", ON_DEMAND));
    }

    /// Adds a node of a pool with this type, zone and capacity type.
    pub(super) fn node_of(
        &mut self,
        name: &str,
        pool: &str,
        (of, zone, bought): (&str, &str, CapacityType),
    ) {
        self.0.node(name, pool);
        let known = self.0.state.catalog.get(of).map(|it| it.capacity.clone());
        let reservation = (bought == RESERVED).then(|| format!("cr-{of}"));
        self.0.edit(name, |node| {
            let labels = [
                (INSTANCE_TYPE, of),
                (ZONE, zone),
                (CAPACITY_TYPE, bought.as_str()),
                (ARCH, "amd64"),
                (OS, "linux"),
                (HOSTNAME, name),
            ];
            let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
            node.labels.extend(labels);
            let id = reservation.clone().map(|id| (RESERVATION_ID.to_owned(), id));
            node.labels.extend(id);
            node.capacity = known.unwrap_or_else(|| node.allocatable.clone());
            node.allocatable = node.capacity.clone();
        });
        let instance = self.0.claim(name).instance.as_mut().expect("it runs");
        instance.offering = OfferingKey {
            instance_type: of.into(),
            zone: zone.into(),
            capacity_type: bought,
            reservation: reservation.map(|id| Box::new(id.as_str().into())),
        };
    }

    /// Adds a pod of a ReplicaSet with these millicores.
    pub(super) fn pod(&mut self, name: &str, node: &str, cpu_milli: i64) {
        self.pod_as(name, node, cpu_milli, |_| {});
    }

    /// The same, with more to say.
    pub(super) fn pod_as(
        &mut self,
        name: &str,
        node: &str,
        cpu_milli: i64,
        change: impl FnOnce(&mut Pod),
    ) {
        let mut pod = pod(name, node, "ReplicaSet");
        pod.requests.cpu_milli = cpu_milli;
        change(&mut pod);
        self.0.pod(pod);
    }

    /// Adds a pending pod.
    pub(super) fn waiting(&mut self, name: &str, cpu_milli: i64) {
        self.waiting_as(name, cpu_milli, |_| {});
    }

    /// The same, with more to say.
    pub(super) fn waiting_as(&mut self, name: &str, cpu_milli: i64, change: impl FnOnce(&mut Pod)) {
        self.pod_as(name, "", cpu_milli, |pod| {
            (pod.node, pod.started, pod.ready) = (None, None, None);
            pod.unschedulable = true;
            change(pod);
        });
    }

    /// Removes a label of a node.
    pub(super) fn unlabel(&mut self, name: &str, key: &str) {
        self.0.edit(name, |node| drop(node.labels.remove(key)));
    }

    /// The next consolidation.
    pub(super) fn plan(&self) -> Plan {
        self.plan_of(&self.0.state)
    }

    fn plan_of(&self, state: &State) -> Plan {
        plan::consolidate(&state.disruption_view(NOW), &state.what_if(NOW), NOW)
    }

    /// The next consolidation if only the Nodes are known, without claims.
    pub(super) fn plan_by_labels(&self) -> Plan {
        let state = &self.0.state;
        let nodes = state.objects.nodes.values().cloned();
        let nodes = nodes.map(|node| WatchedObject::Node(Box::new(node)));
        let pods = state.objects.pods.values().cloned();
        let objects = nodes.chain(pods.map(|pod| WatchedObject::Pod(Box::new(pod))));
        let (cluster, catalog) = (state.cluster.clone(), state.catalog.clone());
        self.plan_of(&State::offline(cluster, catalog, objects.collect(), earlier()))
    }

    /// The disrupted nodes and their replacements, as `n m -> s2/a/spot`.
    pub(super) fn changes(&self) -> String {
        plan_summary(&self.plan())
    }

    /// The code of the verdict that retains a node; `-` if there is none.
    pub(super) fn retaining_code(&self, name: &str) -> &'static str {
        retaining_code(&self.plan(), name)
    }
}

/// The disrupted nodes and their replacements.
pub(super) fn plan_summary(plan: &Plan) -> String {
    let nodes = plan.retire.iter().map(|disrupted| {
        assert_eq!(disrupted.reason, Reason::Underutilized);
        disrupted.node.to_string()
    });
    let claims = plan.launches.iter().map(|launch| {
        let (key, _) = &launch.offerings[0];
        let bought = key.capacity_type.as_str();
        format!("{}/{}/{bought}", key.instance_type, key.zone)
    });
    let [mut nodes, mut claims]: [Vec<String>; 2] = [nodes.collect(), claims.collect()];
    nodes.sort();
    claims.sort();
    let arrow = if nodes.is_empty() { "" } else { " -> " };
    format!("{}{arrow}{}", nodes.join(" "), claims.join(" ")).trim_end().to_owned()
}

/// The code of the verdict that retains a node.
pub(super) fn retaining_code(plan: &Plan, name: &str) -> &'static str {
    let mut kept = plan.kept.iter().filter(|retained| retained.node.as_str() == name);
    kept.next().map_or("-", |retained| match &retained.verdict {
        Verdict::Blocked(why) => why.code(),
        verdict => verdict.code(),
    })
}

/// The labels of the pods of an app.
pub(super) fn app(name: &str) -> Labels {
    Labels::from([("app".to_owned(), name.to_owned())])
}
