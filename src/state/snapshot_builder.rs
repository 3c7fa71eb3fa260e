//! Builds the snapshot for decisions from the state of one cluster.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::model::claim::ClaimPhase;
use crate::model::cluster::ManagementMode;
use crate::model::id::{PodKey, PoolName, ReservationId};
use crate::model::instance::{OfferingKey, Price};
use crate::model::labels::{COMPUTE_TYPE, Labels, MANAGED_BY, NODE_CLASS, POOL, RESERVATION_ID};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::Pool;
use crate::model::quantity::Resources;
use crate::model::reservation::Reservation;
use crate::state::State;
use crate::state::node_capacity::{offering_of, offerings_of};
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot::{BufferPods, NodeRef, Snapshot, Usage};
use crate::state::volume_topology::volume_requirements;

/// Maximum number of virtual pods. Buffer objects may declare any number.
const VIRTUAL_MAX: usize = 50_000;

impl State {
    /// Returns the Node of a claim. Node names are reused, so the Node must belong to the instance
    /// of the claim.
    pub fn node_of(&self, claim: &NodeClaim) -> Option<&Node> {
        let node = self.objects.nodes.get(claim.node.as_ref()?)?;
        let instance = claim.instance.as_ref()?.id.as_str();
        (node.instance_id() == Some(instance)).then_some(node)
    }

    /// Returns the snapshot of this time.
    pub fn snapshot(&self, now: Timestamp) -> Snapshot<'_> {
        self.snapshot_without(&[], now)
    }

    /// Returns the snapshot, including the constraints of these pods in case they must move.
    pub(super) fn snapshot_without<'a>(
        &'a self,
        removed: &[&'a Pod],
        now: Timestamp,
    ) -> Snapshot<'a> {
        let expected = self.expected_by_host(now);
        let reschedulable = self.reschedulable_pods(now);
        let pending = self.waiting_pods_except(&expected, &reschedulable);
        let promised = expected.values().flatten().copied();
        let asking: Vec<&Pod> = pending.iter().chain(removed).copied().collect();
        let mounts = volume_requirements(&self.objects, &asking, promised);
        let namespaces = self.objects.namespaces.iter();
        let gangs = self.bound_gang_pods(&asking, &pending);
        let spare = self.buffer_capacity(&expected, now);
        Snapshot {
            cluster: &self.cluster,
            catalog: &self.catalog,
            overlaid: &self.overlaid,
            holds: &self.holds,
            fleet: self.fleet.as_deref(),
            rooms: self.existing_nodes(&expected, &mounts, now),
            residents: self.objects.bound_pods.groups_without(&reschedulable),
            mounts,
            namespaces: namespaces
                .map(|(name, namespace)| (name.as_str(), &namespace.labels))
                .collect(),
            selectors: &self.objects.selectors,
            pending,
            reschedulable,
            promised: expected,
            daemon_sets: self.objects.expected_daemon_sets().collect(),
            usage: self.usage_by_pool(),
            gangs,
            reservations: self.remaining_reservations(),
            lacking: self.missing_static_nodes(),
            spare,
        }
    }

    /// Returns the gangs with pending pods, each with the number of its bound pods, without those
    /// that must move.
    fn bound_gang_pods<'s>(
        &'s self,
        asking: &[&'s Pod],
        pending: &[&'s Pod],
    ) -> BTreeMap<(&'s str, &'s str), usize> {
        let gangs = asking.iter().filter_map(|pod| Some((pod.gang_key()?, 0)));
        let mut gangs: BTreeMap<(&str, &str), usize> = gangs.collect();
        if gangs.is_empty() {
            return gangs;
        }
        let moving: BTreeSet<&PodKey> = pending.iter().map(|pod| &pod.key).collect();
        let bound =
            self.objects.pods.values().filter(|pod| pod.occupies_node() && pod.deleting.is_none());
        for pod in bound.filter(|pod| !moving.contains(&pod.key)) {
            if let Some(count) = pod.gang_key().and_then(|key| gangs.get_mut(&key)) {
                *count += 1;
            }
        }
        gangs
    }

    /// Returns the number of missing nodes of static pools. Nodes being disrupted count as missing.
    pub fn missing_static_nodes(&self) -> BTreeMap<PoolName, usize> {
        let pools = self.cluster.pools.iter();
        let wanted = pools.filter_map(|pool| Some((pool.name.clone(), pool.replicas?)));
        let mut lacking: BTreeMap<PoolName, usize> = wanted
            .map(|(name, wanted)| (name, usize::try_from(wanted).unwrap_or(usize::MAX)))
            .collect();
        if lacking.is_empty() {
            return lacking;
        }
        let claims = self.ledger.claims.values().filter(|claim| claim.takes_pods());
        let claims = claims.map(|claim| claim.record.pool.as_str());
        let nodes = self.claimless_nodes().chain(self.nodes_to_adopt());
        let nodes = nodes
            .filter(|node| !node.is_leaving())
            .filter_map(|node| node.labels.get(POOL).map(String::as_str));
        for pool in claims.chain(nodes) {
            if let Some(count) = lacking.get_mut(pool) {
                *count = count.saturating_sub(1);
            }
        }
        lacking.retain(|_, count| *count > 0);
        lacking
    }

    /// Returns whether a static pool has as many kept nodes as configured. True for other pools.
    pub fn has_all_static_nodes(&self, pool: &PoolName) -> bool {
        let configured = self.cluster.pool(pool.as_str());
        let Some(wanted) = configured.and_then(|pool| pool.replicas) else {
            return true;
        };
        let stays = self.ledger.claims.values().filter(|claim| {
            let runs = claim.phase == ClaimPhase::Initialized && claim.record.pool == *pool;
            runs && claim.takes_pods() && self.node_of(claim).is_some_and(|node| node.ready)
        });
        stays.count() >= usize::try_from(wanted).unwrap_or(usize::MAX)
    }

    /// Returns the capacity that buffers reserve now. The priority cutoff does not apply to
    /// configured buffers.
    fn buffer_capacity(
        &self,
        expected: &BTreeMap<NodeRef, Vec<&Pod>>,
        now: Timestamp,
    ) -> BufferPods {
        let cutoff = self.cluster.scheduling.priority_cutoff;
        let (mut pods, mut wanted) = (Vec::new(), BTreeMap::new());
        for buffer in self.buffers() {
            let buffer_pods = buffer.virtual_pods(self.objects.pods.values(), now);
            let count = buffer_pods
                .as_ref()
                .map(|buffer_pods| u32::try_from(buffer_pods.len()).unwrap_or(u32::MAX));
            wanted.insert(buffer.name.clone(), count);
            let remaining = VIRTUAL_MAX - pods.len();
            pods.extend(buffer_pods.into_iter().flatten().take(remaining));
        }
        for pod in &mut pods {
            pod.priority = cutoff.unwrap_or(pod.priority);
        }
        let mut idle = BTreeSet::new();
        for node in self.objects.nodes.values().filter(|_| !pods.is_empty()) {
            let name = node.name.as_str();
            let used = self.objects.pods_on(name).any(Pod::occupies_node)
                || expected.contains_key(&NodeRef::Node(node.name.clone()))
                || self.nominated_until(&node.name).is_some_and(|at| at > now);
            let pool = node.pool_name();
            let pool = pool.and_then(|pool| self.cluster.pool(pool.as_str()));
            if !used && pool.is_none_or(|pool| pool.replicas.is_none()) {
                idle.insert(node.name.clone());
            }
        }
        BufferPods { pods, wanted, idle }
    }

    pub(super) fn usage_by_pool(&self) -> BTreeMap<PoolName, Usage> {
        let mut usage: BTreeMap<PoolName, Usage> = BTreeMap::new();
        for claim in self.ledger.claims.values() {
            let pool_usage = usage.entry(claim.record.pool.clone()).or_default();
            pool_usage.nodes += 1;
            pool_usage.capacity.add(&self.capacity_of(claim));
        }
        for node in self.claimless_nodes().chain(self.nodes_to_adopt()) {
            let pool_usage = usage.entry(node.pool_name().unwrap_or_default()).or_default();
            pool_usage.nodes += 1;
            pool_usage.capacity.add(&node.capacity);
        }
        usage
    }

    /// Returns the remaining capacity of each reservation. In offline mode the catalog does not
    /// include the usage by instances, so all nodes are subtracted.
    fn remaining_reservations(&self) -> BTreeMap<ReservationId, Reservation> {
        let mut left = self.ledger.remaining_reservations(self.catalog.reservations());
        if left.is_empty() {
            return left;
        }
        for node in self.claimless_nodes() {
            let id = node.labels.get(RESERVATION_ID);
            if let Some(reservation) = id.and_then(|id| left.get_mut(id.as_str())) {
                reservation.left =
                    reservation.left.saturating_sub(u32::from(reservation.counted.is_none()));
            }
        }
        left
    }

    /// Returns the capacity of a claim for limits.
    pub fn capacity_of(&self, claim: &NodeClaim) -> Resources {
        let mut capacity = Resources::default();
        let catalog = self.catalog_of(&claim.record.pool);
        for offering in offerings_of(claim) {
            // Until the launched type is known, the largest quantity of each resource is used.
            if let Some(instance_type) = catalog.get(offering.instance_type.as_str()) {
                capacity.raise_to(&instance_type.capacity);
            }
        }
        if let Some(node) = self.node_of(claim) {
            // The catalog may no longer contain the instance type.
            capacity.raise_to(&node.capacity);
        }
        capacity
    }

    /// In offline mode, nodes of configured pools count as claims, as do nodes of this installation
    /// whose pools were removed.
    pub(super) fn claimless_nodes(&self) -> impl Iterator<Item = &Node> {
        let nodes = self.offline.then(|| self.objects.nodes.values());
        nodes.into_iter().flatten().filter(|node| {
            node.labels.get(POOL).is_some_and(|pool| {
                self.is_of_this_installation(node) || self.cluster.pool(pool).is_some()
            })
        })
    }

    /// Returns nodes that a different tool, such as Karpenter, launched for a pool with the same
    /// name.
    pub fn adoptable_nodes(&self) -> impl Iterator<Item = &Node> {
        self.karpenter_nodes(|pool| self.cluster.pool(pool).is_some()).filter(|node| {
            let id = node.instance_id();
            id.is_none_or(|id| self.ledger.by_instance(id).is_none())
        })
    }

    /// Returns the adoptable nodes that will be adopted. Limits and static pools already include
    /// them.
    fn nodes_to_adopt(&self) -> impl Iterator<Item = &Node> {
        let takes = self.cluster.adopt && self.cluster.mode == ManagementMode::Manage;
        takes.then(|| self.adoptable_nodes()).into_iter().flatten()
    }

    /// Returns the adoptable nodes without a configured pool.
    pub fn poolless_nodes(&self) -> impl Iterator<Item = &Node> {
        self.karpenter_nodes(|pool| self.cluster.pool(pool).is_none())
    }

    /// Returns Karpenter nodes without an Outrigger installation label. Nodes of EKS Auto Mode have
    /// the same label but are excluded.
    fn karpenter_nodes(&self, is_wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = &Node> {
        self.objects.nodes.values().filter(move |node| {
            let labels = &node.labels;
            labels.get(POOL).is_some_and(|pool| is_wanted(pool))
                && !labels.contains_key(MANAGED_BY)
                && labels.get(COMPUTE_TYPE).is_none_or(|compute| compute != "auto")
        })
    }

    /// Returns the total price of all nodes with known offerings, in US dollars per hour.
    pub fn total_cost(&self) -> f64 {
        let prices = self.objects.nodes.values().filter_map(|node| self.price_of(node, None));
        // The sum of an empty iterator would be -0.0.
        prices.map(Price::usd_per_h).fold(0.0, |sum, price| sum + price)
    }

    /// Returns the price of the instance of a claim, if the instance and its price are known.
    pub fn price_of_instance(&self, claim: &NodeClaim) -> Option<Price> {
        let offering = self.catalog.offering(offering_of(claim)?);
        offering.map(|offering| offering.price)
    }

    /// Returns the price of a node. Its offering is known from its instance or its labels.
    pub fn price_of(&self, node: &Node, claim: Option<&NodeClaim>) -> Option<Price> {
        self.price_in(&self.catalog, node, claim)
    }

    /// Returns the price of a node in a given catalog.
    pub(super) fn price_in(
        &self,
        catalog: &Catalog,
        node: &Node,
        claim: Option<&NodeClaim>,
    ) -> Option<Price> {
        let offering = match claim.and_then(offering_of) {
            Some(key) => catalog.offering(key),
            None => catalog.offering(&OfferingKey::from_labels(&node.labels)?),
        };
        offering.map(|offering| offering.price)
    }
}

/// Returns the Node of a claim, or the claim until it has one.
pub(crate) fn host_of(claim: &NodeClaim) -> NodeRef {
    match &claim.node {
        Some(node) => NodeRef::Node(node.clone()),
        None => NodeRef::Claim(claim.record.id.clone()),
    }
}

/// Returns the labels that Outrigger sets on the node of a claim, without those of its instance.
pub fn node_labels(claim: &NodeClaim, pool: &Pool) -> Labels {
    let mut labels = pool.labels.clone();
    labels.insert(POOL.to_owned(), pool.name.to_string());
    labels.extend(claim.labels.clone());
    labels.insert(MANAGED_BY.to_owned(), claim.record.installation.clone());
    if let Some(class) = &claim.record.node_class {
        labels.insert(NODE_CLASS.to_owned(), class.to_string());
    }
    labels
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use crate::catalog::Catalog;
    use crate::model::affinity::Gang;
    use crate::model::claim::ClaimPhase;
    use crate::model::instance::{CapacityType, OfferingKey};
    use crate::model::pod::Pod;
    use crate::state::State;
    use crate::state::fixtures::{NOW, claim, pod, waiting};

    #[test]
    fn bound_pods_count_towards_pending_gangs() {
        let of = |gang: &str, mut pod: Pod| {
            pod.gang = Some(Gang { name: gang.to_owned(), least: None });
            pod
        };
        let mut terminating = of("g", pod("default", "leaves", "n"));
        terminating.deleting = Some(NOW);
        let mut state = State::default();
        for pod in [
            of("g", waiting("default", "w")),
            of("g", pod("default", "b", "n")),
            of("other", pod("default", "o", "n")),
            terminating,
        ] {
            state.objects.apply(pod.into(), NOW);
        }
        let expect = BTreeMap::from([(("default", "g"), 1)]);
        assert_eq!(state.snapshot(NOW).gangs, expect);
    }

    /// A launch response may be lost and the listing may have the instance. The other offerings of
    /// the launch then no longer count.
    #[test]
    fn claim_capacity_is_that_of_its_instance() {
        let catalog = Arc::new(Catalog::shipped());
        let state = State { catalog: catalog.clone(), ..State::default() };
        let [small, large] = ["m5.large", "r5.large"].map(|name| catalog.get(name).expect(name));
        let of = |name: &str| OfferingKey {
            instance_type: name.into(),
            zone: "zone".into(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
        };
        let mut claim = claim("c", Some("n"), ClaimPhase::Launched);
        claim.offerings = vec![of(small.name.as_str()), of(large.name.as_str())];
        let instance = claim.instance.as_mut().expect("an instance");
        instance.offering = of(small.name.as_str());
        assert_eq!(state.capacity_of(&claim), small.capacity);
        claim.instance = None;
        let mut either = small.capacity.clone();
        either.raise_to(&large.capacity);
        assert_eq!(state.capacity_of(&claim), either);
    }
}
