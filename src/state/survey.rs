//! Builds the snapshot that decisions receive from the state of one cluster.
//! It must not know which decision is about to be made.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::model::claim::Phase;
use crate::model::id::{NodeName, ObjectKey, PoolName};
use crate::model::instance::{CapacityType, InstanceType, OfferingKey, Price};
use crate::model::labels::{
    CAPACITY_TYPE, DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS, HOSTNAME, INITIALIZED_AT, INSTANCE_TYPE,
    Labels, MANAGED_BY, NODE_CLASS, POOL, ZONE,
};
use crate::model::node::Node;
use crate::model::pod::{DaemonSet, Pod};
use crate::model::pool::Pool;
use crate::model::quantity::Resources;
use crate::model::requirement::{Requirement, Requirements};
use crate::model::taint::{Taint, untolerated};
use crate::state::State;
use crate::state::ledger::Claim;
use crate::state::snapshot::{Candidate, Host, Room, Roster, Snapshot, Usage};

impl State {
    /// The Node of a claim, as the watch shows it. Names of Nodes are used again: only one that
    /// stands for the claim's own instance counts.
    pub fn node_of(&self, claim: &Claim) -> Option<&Node> {
        let node = self.objects.nodes.get(claim.node.as_ref()?)?;
        let own = claim.instance.as_ref()?.id.as_str();
        (node.instance_id() == Some(own)).then_some(node)
    }

    /// The view of this moment.
    pub fn snapshot(&self, now: Timestamp) -> Snapshot<'_> {
        let expected = self.expected(now);
        Snapshot {
            cluster: &self.cluster,
            catalog: &self.catalog,
            holds: &self.holds,
            rooms: self.rooms(&expected),
            pending: self.waiting_but(&expected),
            daemon_sets: self.objects.daemon_sets.values().collect(),
            usage: self.usage(),
        }
    }

    /// Who might leave now.
    pub fn roster(&self, now: Timestamp) -> Roster<'_> {
        let mut leaving = BTreeMap::new();
        for claim in self.ledger.claims.values() {
            if claim.leaving.is_some() && claim.node.is_some() {
                *leaving.entry(claim.record.pool.clone()).or_insert(0) += 1;
            }
        }
        Roster {
            cluster: &self.cluster,
            candidates: self.candidates(now),
            leaving,
        }
    }

    fn rooms(&self, expected: &BTreeMap<Host, Vec<&Pod>>) -> Vec<Room> {
        let mut claim_of: BTreeMap<&NodeName, &Claim> = BTreeMap::new();
        let mut rooms = Vec::new();
        for claim in self.ledger.claims.values() {
            match self.node_of(claim) {
                Some(node) => {
                    claim_of.insert(&node.name, claim);
                }
                None if claim.node.is_none() && claim.takes_pods() => {
                    rooms.extend(self.room_of_claim(claim));
                }
                None => {}
            }
        }
        for node in self.objects.nodes.values() {
            let claim = claim_of.get(&node.name).copied();
            let leaves = node.deleting.is_some()
                || node.unschedulable
                || node.has_disrupted_taint()
                || claim.is_some_and(|claim| !claim.takes_pods());
            if !leaves {
                rooms.push(self.room_of_node(node, claim));
            }
        }
        for room in &mut rooms {
            for pod in expected.get(&room.host).into_iter().flatten() {
                room.free.subtract(&pod.requests);
                room.host_ports.extend(pod.host_ports.iter().cloned());
            }
        }
        rooms.sort_by(|a, b| (!a.initialized, &a.host).cmp(&(!b.initialized, &b.host)));
        rooms
    }

    pub(super) fn room_of_node(&self, node: &Node, claim: Option<&Claim>) -> Room {
        let mut labels = Requirements::from_labels(&node.labels);
        labels.add(HOSTNAME, Requirement::is_in([node.name.as_str()]));
        let pool = claim.and_then(|claim| self.cluster.pool(claim.record.pool.as_str()));
        let registered = node.is_registered() || claim.is_none();
        let initialized = node.is_initialized() || claim.is_none();
        if let (false, Some(pool)) = (registered, pool) {
            for (key, value) in &pool.labels {
                labels.add(key, Requirement::is_in([value.as_str()]));
            }
            labels.add(POOL, Requirement::is_in([pool.name.as_str()]));
        }
        let startup = claim.map_or(&[][..], |claim| &claim.record.startup_taints);
        let goes_by_itself = |taint: &Taint| {
            !initialized && (taint.is_ephemeral() || startup.iter().any(|own| own.matches(taint)))
        };
        let taints: Vec<Taint> = node
            .taints
            .iter()
            .filter(|taint| !goes_by_itself(taint))
            .cloned()
            .collect();
        let mut free = node.allocatable.clone();
        if let (false, Some(offering)) = (initialized, claim.and_then(offering_of)) {
            // Plugins report their resources late: count on what the type has.
            if let Some(known) = self.catalog.get(offering.instance_type.as_str()) {
                free.raise_to(&known.allocatable);
            }
        }
        let mut ports = BTreeSet::new();
        let mut daemons: BTreeSet<(&str, &str)> = BTreeSet::new();
        for pod in self
            .objects
            .pods_on(node.name.as_str())
            .filter(|pod| !pod.is_terminal())
        {
            free.subtract(&pod.requests);
            ports.extend(pod.host_ports.iter().cloned());
            if let Some(owner) = pod.owner.as_ref().filter(|_| pod.is_daemon()) {
                daemons.insert((&pod.key.namespace, &owner.name));
            }
        }
        let missing = self.objects.daemon_sets.values();
        let there = |key: &ObjectKey| daemons.contains(&(&key.namespace[..], &key.name[..]));
        let missing = missing.filter(|set| !there(&set.key));
        free.subtract(&daemon_requests(missing, &taints, &labels));
        let host = Host::Node(node.name.clone());
        Room {
            host,
            labels,
            taints,
            free,
            host_ports: ports,
            initialized,
        }
    }

    fn room_of_claim(&self, claim: &Claim) -> Option<Room> {
        let pool = self.cluster.pool(claim.record.pool.as_str())?;
        let offerings = match offering_of(claim) {
            Some(offering) => std::slice::from_ref(offering),
            None => &claim.offerings,
        };
        let mut types: Vec<&InstanceType> = offerings
            .iter()
            .filter_map(|offering| self.catalog.get(offering.instance_type.as_str()))
            .collect();
        types.dedup_by_key(|it| &it.name);
        let mut free = types.first()?.allocatable.clone();
        for it in &types {
            let mut excess = free.clone();
            excess.subtract(&it.allocatable);
            for (name, amount) in excess.iter().filter(|(_, amount)| *amount > 0) {
                lower(&mut free, name, amount);
            }
        }
        let mut labels = claim_labels(pool, offerings, &types);
        labels.add_all(&Requirements::from_labels(&claim.labels));
        let taints = pool.taints.clone();
        free.subtract(&daemon_requests(
            self.objects.daemon_sets.values(),
            &taints,
            &labels,
        ));
        let host = Host::Claim(claim.record.id.clone());
        Some(Room {
            host,
            labels,
            taints,
            free,
            host_ports: BTreeSet::new(),
            initialized: false,
        })
    }

    fn usage(&self) -> BTreeMap<PoolName, Usage> {
        let mut usage: BTreeMap<PoolName, Usage> = BTreeMap::new();
        for claim in self.ledger.claims.values() {
            let own = usage.entry(claim.record.pool.clone()).or_default();
            own.nodes += 1;
            let mut capacity = Resources::default();
            let offerings = offering_of(claim).into_iter().chain(&claim.offerings);
            for offering in offerings {
                // Until it is known which is launched, the largest of each resource counts.
                if let Some(it) = self.catalog.get(offering.instance_type.as_str()) {
                    capacity.raise_to(&it.capacity);
                }
            }
            if let Some(node) = self.node_of(claim) {
                // The catalog may have forgotten its type.
                capacity.raise_to(&node.capacity);
            }
            own.capacity.add(&capacity);
        }
        for node in self.claimless_nodes() {
            let own = usage.entry(node.pool().unwrap_or_default()).or_default();
            own.nodes += 1;
            own.capacity.add(&node.capacity);
        }
        usage
    }

    /// Offline, nodes of our pools stand for their claims.
    fn claimless_nodes(&self) -> impl Iterator<Item = &Node> {
        let ours = |node: &&Node| {
            self.offline
                && node
                    .pool()
                    .is_some_and(|pool| self.cluster.pool(pool.as_str()).is_some())
        };
        self.objects.nodes.values().filter(ours)
    }

    fn candidates(&self, now: Timestamp) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = self
            .ledger
            .claims
            .values()
            .filter(|claim| claim.leaving.is_none() && claim.phase <= Phase::Initialized)
            .filter_map(|claim| Some(self.candidate(self.node_of(claim)?, Some(claim), now)))
            .collect();
        all.extend(
            self.claimless_nodes()
                .map(|node| self.candidate(node, None, now)),
        );
        all.sort_by(|a, b| a.node.cmp(&b.node));
        all
    }

    /// What speaks for and against a node's leaving.
    pub fn candidate(&self, node: &Node, claim: Option<&Claim>, now: Timestamp) -> Candidate {
        let name = node.name.as_str();
        let stamp = node
            .annotations
            .get(INITIALIZED_AT)
            .and_then(|text| text.parse().ok());
        let seen = claim
            .filter(|claim| claim.phase == Phase::Initialized)
            .map(|claim| claim.since);
        let offline = claim.is_none().then_some(node.created).flatten();
        let initialized = if node.is_initialized() {
            stamp.or(seen).or(offline)
        } else {
            None
        };
        let started = self.started.filter(|_| claim.is_some());
        let keys = [DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS];
        let mut protected = keys.iter().find_map(|key| {
            let value = node.annotations.get(*key)?;
            (value == "true").then(|| format!("the node is annotated {key}=true"))
        });
        let mut pods = 0;
        for pod in self.objects.pods_on(name) {
            pods += usize::from(pod.occupies_node());
            if protected.is_none() && pod.is_protected() && !pod.is_terminal() {
                let key = &pod.key;
                protected = Some(format!("pod {key} is annotated {DO_NOT_DISRUPT}=true"));
            }
        }
        Candidate {
            claim: claim.map(|claim| claim.record.id.clone()),
            node: node.name.clone(),
            pool: node.pool().unwrap_or_default(),
            initialized,
            ready: node.ready,
            changed: self
                .objects
                .pods_changed(name)
                .max(initialized)
                .max(started),
            pods,
            nominated: claim.is_some_and(|claim| {
                self.expects_pods(claim, now)
                    && claim
                        .pods
                        .iter()
                        .any(|key| self.objects.pods.get(key).is_some_and(Pod::is_waiting))
            }) || self
                .nominated_until(&node.name)
                .is_some_and(|until| until > now),
            protected,
            price: self.price_of(node, claim),
        }
    }

    /// What all nodes cost whose offerings the catalog knows, in US dollars per hour.
    pub fn cost(&self) -> f64 {
        let prices = self
            .objects
            .nodes
            .values()
            .filter_map(|node| self.price_of(node, None));
        // A sum of nothing would be -0.0.
        prices
            .map(Price::usd_per_h)
            .fold(0.0, |sum, price| sum + price)
    }

    /// What a node costs, by its instance or else by its labels.
    pub fn price_of(&self, node: &Node, claim: Option<&Claim>) -> Option<Price> {
        let from_labels = || -> Option<OfferingKey> {
            let label = |key: &str| node.labels.get(key).map(String::as_str);
            Some(OfferingKey {
                instance_type: label(INSTANCE_TYPE)?.into(),
                zone: label(ZONE)?.into(),
                capacity_type: CapacityType::parse(label(CAPACITY_TYPE)?)?,
            })
        };
        let key = claim.and_then(offering_of).cloned().or_else(from_labels)?;
        self.catalog.offering(&key).map(|offering| offering.price)
    }
}

fn lower(resources: &mut Resources, name: &str, by: i64) {
    let mut taken = Resources::default();
    match name {
        "cpu" => taken.cpu_milli = by,
        "memory" => taken.memory = by,
        "ephemeral-storage" => taken.ephemeral_storage = by,
        "pods" => taken.pods = by,
        other => {
            taken.extended.insert(other.to_owned(), by);
        }
    }
    resources.subtract(&taken);
}

pub(super) fn host_of(claim: &Claim) -> Host {
    match &claim.node {
        Some(node) => Host::Node(node.clone()),
        None => Host::Claim(claim.record.id.clone()),
    }
}

fn offering_of(claim: &Claim) -> Option<&OfferingKey> {
    claim.instance.as_ref().map(|instance| &instance.offering)
}

/// The labels a claim's node is sure to get: those all its offerings share.
fn claim_labels(pool: &Pool, offerings: &[OfferingKey], types: &[&InstanceType]) -> Requirements {
    let mut labels = Requirements::from_labels(&pool.labels);
    labels.add(POOL, Requirement::is_in([pool.name.as_str()]));
    let Some(first) = types.first() else {
        return labels;
    };
    for (key, requirement) in first.requirements.iter() {
        let single = requirement.values().is_some_and(|values| values.len() == 1);
        if single
            && types
                .iter()
                .all(|it| it.requirements.get(key) == Some(requirement))
        {
            labels.add(key, requirement.clone());
        }
    }
    let same = |of: fn(&OfferingKey) -> &str| -> Option<String> {
        let mut values = offerings.iter().map(of);
        let first = values.next()?;
        values.all(|value| value == first).then(|| first.to_owned())
    };
    for (key, value) in [
        (ZONE, same(|o| o.zone.as_str())),
        (CAPACITY_TYPE, same(|o| o.capacity_type.as_str())),
        (INSTANCE_TYPE, same(|o| o.instance_type.as_str())),
    ] {
        if let Some(value) = value {
            labels.add(key, Requirement::is_in([value]));
        }
    }
    labels
}

/// What the daemons that will run on a host ask for. Source: spec/scheduling.md §2.9.
fn daemon_requests<'a>(
    sets: impl Iterator<Item = &'a DaemonSet>,
    taints: &[Taint],
    labels: &Requirements,
) -> Resources {
    let mut sum = Resources::default();
    for set in sets {
        let pod = &set.template;
        let mut wanted = vec![Requirements::from_labels(&pod.node_selector)];
        if !pod.node_affinity.is_empty() {
            wanted = pod
                .node_affinity
                .iter()
                .map(|term| {
                    let mut both = wanted[0].clone();
                    both.add_all(term);
                    both
                })
                .collect();
        }
        let fits = untolerated(taints, &pod.tolerations).is_none()
            && wanted
                .iter()
                .any(|own| labels.compatible(own, false).is_ok());
        if fits {
            sum.add(&pod.requests);
        }
    }
    sum
}

/// The labels that a claim's node has from us, from its launch on, without those of its instance.
pub fn node_labels(claim: &Claim, pool: &Pool) -> Labels {
    let mut labels = pool.labels.clone();
    labels.insert(POOL.to_owned(), pool.name.to_string());
    labels.extend(claim.labels.clone());
    labels.insert(MANAGED_BY.to_owned(), claim.record.installation.clone());
    if let Some(class) = &claim.record.node_class {
        labels.insert(NODE_CLASS.to_owned(), class.to_string());
    }
    labels
}
