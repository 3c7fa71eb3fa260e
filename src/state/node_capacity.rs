//! Capacity of existing nodes, and expected capacity of in-flight nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::catalog::Catalog;
use crate::model::id::{NodeName, ObjectKey, PodKey};
use crate::model::instance::{InstanceType, OfferingKey};
use crate::model::labels::{
    ATTACHABLE, CAPACITY_TYPE, EFA, INITIALIZED, INSTANCE_TYPE, Labels, POOL, REGISTERED,
    RESERVATION_ID, ZONE, ZONE_ID,
};
use crate::model::node::Node;
use crate::model::pod::{DaemonSet, Pod};
use crate::model::pool::Pool;
use crate::model::quantity::Resources;
use crate::model::requirement::{Requirement, Requirements};
use crate::model::taint::{Taint, UNREACHABLE, first_untolerated};
use crate::state::State;
use crate::state::node_claims::NodeClaim;
use crate::state::object_cache::labels_of;
use crate::state::snapshot::{ExistingNode, NodeRef, VolumeRequirements};
use crate::state::volume_topology::attachable_left;

/// The DaemonSets, each with alternative label requirements of its nodes.
pub(super) type Daemons<'a> = Vec<(&'a DaemonSet, Vec<Requirements>)>;

/// A node counts as gone for this long after its termination starts. If it still exists later, it
/// may remain for hours. See docs/decisions/027-consolidation.md.
const GOING: SignedDuration = SignedDuration::from_mins(5);

/// Returns whether a node is being terminated and will be gone soon. Until then, a scheduler that
/// spreads pods over hosts counts the node as an empty host, and limits the pods on all other hosts
/// to the skew. It would be wasteful to launch one node per pod because of that.
fn is_terminating_now(claim: &NodeClaim, now: Timestamp) -> bool {
    claim.leaving.is_some() && now.duration_since(claim.since) < GOING
}

impl State {
    /// Returns all nodes with their free capacity minus expected pods: initialized nodes first,
    /// then by name. Attached volumes are counted only for drivers that these pods use.
    pub(super) fn existing_nodes(
        &self,
        expected: &BTreeMap<NodeRef, Vec<&Pod>>,
        mounts: &BTreeMap<&PodKey, VolumeRequirements>,
        now: Timestamp,
    ) -> Vec<ExistingNode> {
        let daemons = self.daemon_requirements();
        let brought: BTreeSet<&str> =
            mounts.values().flat_map(|mount| mount.attached.keys().map(String::as_str)).collect();
        let mut claim_of: BTreeMap<&NodeName, &NodeClaim> = BTreeMap::new();
        let mut rooms = Vec::new();
        for claim in self.ledger.claims.values() {
            match self.node_of(claim) {
                Some(node) => drop(claim_of.insert(&node.name, claim)),
                None if claim.node.is_none() && claim.takes_pods() => {
                    rooms.extend(self.in_flight_node(claim, &daemons));
                }
                None => {}
            }
        }
        for node in self.objects.nodes.values() {
            let claim = claim_of.get(&node.name).copied();
            if !claim.is_some_and(|claim| is_terminating_now(claim, now)) {
                rooms.push(self.existing_node(node, claim, &daemons));
            }
        }
        for room in &mut rooms {
            for pod in expected.get(&room.host).into_iter().flatten() {
                room.free.subtract(&pod.requests);
                room.host_ports.extend(pod.host_ports.iter().cloned());
            }
            let NodeRef::Node(name) = &room.host else {
                continue;
            };
            if let Some(limits) = self.objects.csi_nodes.get(name).filter(|_| room.open) {
                let coming = expected.get(&room.host).map_or(&[][..], Vec::as_slice);
                let left = attachable_left(&self.objects, limits, coming, &brought);
                room.free.extended.extend(left);
            }
        }
        rooms.sort_by(|one, other| {
            (!one.initialized, &one.host).cmp(&(!other.initialized, &other.host))
        });
        rooms
    }

    /// Returns whether a node accepts pods: it is neither being disrupted nor cordoned.
    pub(super) fn is_open(&self, node: &Node, claim: Option<&NodeClaim>) -> bool {
        node.deleting.is_none()
            && !node.unschedulable
            && !node.has_disrupted_taint()
            && claim.is_none_or(NodeClaim::takes_pods)
    }

    /// Returns the free capacity of a node without volumes. For a tainted node, labels and taints
    /// are reported as they are.
    pub(super) fn existing_node(
        &self,
        node: &Node,
        claim: Option<&NodeClaim>,
        daemons: &Daemons<'_>,
    ) -> ExistingNode {
        let open = self.is_open(node, claim);
        let labels = self.labels_of_node(node, claim.filter(|_| open));
        let initialized = node.is_initialized() || claim.is_none();
        let startup = claim.map_or(&[][..], |claim| &claim.record.startup_taints);
        let mut taints = node.taints.clone();
        if open && !initialized {
            // Other components remove temporary taints.
            taints.retain(|taint| {
                let is_removed = taint.is_ephemeral()
                    || (node.is_awaited() && taint.key == UNREACHABLE)
                    || startup.iter().any(|startup| startup.matches(taint));
                !is_removed
            });
        }
        let mut free = node.allocatable.clone();
        // Only the CSINode contains the number of attachable volumes.
        free.extended.retain(|name, _| !name.starts_with(ATTACHABLE));
        if let (false, Some(claim)) = (initialized, claim) {
            // Device plugins report their resources late, so the resources of the type are used.
            let catalog = self.catalog_of(&claim.record.pool);
            let known = offering_of(claim)
                .and_then(|offering| catalog.get(offering.instance_type.as_str()));
            if let Some(known) = known {
                let mut promised = known.allocatable.clone();
                self.take_adapters(claim, &mut promised);
                free.raise_to(&promised);
            }
        }
        let load = self.objects.node_usage(node.name.as_str());
        free.subtract(&load.requests());
        let mut room = ExistingNode {
            host: NodeRef::Node(node.name.clone()),
            labels,
            taints,
            free,
            daemons: Vec::new(),
            host_ports: load.host_ports(),
            initialized,
            idle: false,
            open,
        };
        if open {
            let missing = daemons.iter().filter(|(set, _)| !load.has_daemon(&set.key));
            let in_the_end = match initialized {
                true => room.labels.clone(),
                false => Arc::new(initialized_labels(&room.labels)),
            };
            let coming = expected_daemons(missing, &room.taints, &in_the_end);
            subtract_daemons(&mut room, &coming);
        }
        room
    }

    /// Returns the labels of a node, including those that its claim sets at registration.
    fn labels_of_node(&self, node: &Node, claim: Option<&NodeClaim>) -> Arc<Requirements> {
        let claim = claim.filter(|_| !node.is_registered());
        let pool = claim.and_then(|claim| self.cluster.pool(claim.record.pool.as_str()));
        let (Some(claim), Some(pool)) = (claim, pool) else {
            return self.objects.node_requirements(&node.name);
        };
        let mut labels = node.labels.clone();
        labels.extend(pool.labels.clone());
        labels.extend(claim.labels.clone());
        labels.insert(POOL.to_owned(), pool.name.to_string());
        Arc::new(labels_of(&node.name, &labels))
    }

    fn in_flight_node(&self, claim: &NodeClaim, daemons: &Daemons<'_>) -> Option<ExistingNode> {
        let pool = self.cluster.pool(claim.record.pool.as_str())?;
        let catalog = self.catalog_of(&pool.name);
        let host = NodeRef::Claim(claim.record.id.clone());
        let mut room = in_flight_node_of(host, pool, offerings_of(claim), catalog, &claim.labels)?;
        self.take_adapters(claim, &mut room.free);
        // Pods may be bound to it before its Node is observed.
        if let Some(node) = claim.expected_node() {
            let load = self.objects.node_usage(node.name.as_str());
            room.free.subtract(&load.requests());
            room.host_ports.extend(load.host_ports());
        }
        let coming =
            expected_daemons(daemons.iter(), &room.taints, &initialized_labels(&room.labels));
        subtract_daemons(&mut room, &coming);
        Some(room)
    }

    /// Removes network adapters from the capacity of a type if the claim is launched without them:
    /// they depend on the launch template, not on the type alone. Source: spec/aws.md §10, 102.
    fn take_adapters(&self, claim: &NodeClaim, resources: &mut Resources) {
        let mut classes = self.cluster.node_classes.iter();
        let class = classes.find(|class| Some(&class.name) == claim.record.node_class.as_ref());
        let facts = claim.instance.as_ref().and_then(|instance| instance.facts.as_deref());
        let lacks = match facts.and_then(|fact| fact.adapters) {
            Some(count) => count == 0,
            None => {
                // A layout of the node class takes precedence over pod requests.
                let by_pods = class.is_some_and(|class| class.network_interfaces.is_none());
                let devices = claim.devices.as_ref();
                by_pods && devices.is_some_and(|device| !device.contains(EFA))
            }
        };
        if lacks {
            resources.extended.remove(EFA);
        }
    }

    /// Returns the DaemonSets with the label requirements of each.
    pub(super) fn daemon_requirements(&self) -> Daemons<'_> {
        with_requirements(self.objects.expected_daemon_sets())
    }
}

fn with_requirements<'a>(sets: impl Iterator<Item = &'a DaemonSet>) -> Daemons<'a> {
    sets.map(|set| (set, node_requirements(&set.template))).collect()
}

/// Returns the alternative label requirements of a pod: its node selector with each affinity term.
fn node_requirements(pod: &Pod) -> Vec<Requirements> {
    let selected = Requirements::from_labels(&pod.node_selector);
    if pod.node_affinity.is_empty() {
        return vec![selected];
    }
    let terms = pod.node_affinity.iter();
    terms.map(|term| selected.merged_with(term)).collect()
}

/// Returns the DaemonSets of a node on which no DaemonSet pod is counted yet.
pub fn daemons_of(room: &ExistingNode, sets: &[&DaemonSet]) -> Vec<(ObjectKey, bool)> {
    let sets = with_requirements(sets.iter().copied());
    daemon_keys(&expected_daemons(sets.iter(), &room.taints, &initialized_labels(&room.labels)))
}

/// Subtracts expected DaemonSet requests from a node.
fn subtract_daemons(room: &mut ExistingNode, coming: &[(&DaemonSet, bool)]) {
    for (set, _) in coming {
        room.free.subtract(&set.template.requests);
    }
    room.daemons = daemon_keys(coming);
}

fn daemon_keys(coming: &[(&DaemonSet, bool)]) -> Vec<(ObjectKey, bool)> {
    coming.iter().map(|(set, is_sure)| (set.key.clone(), *is_sure)).collect()
}

/// Returns the labels of a node after its initialization, which a DaemonSet may require.
fn initialized_labels(labels: &Requirements) -> Requirements {
    let mut labels = labels.clone();
    for key in [REGISTERED, INITIALIZED] {
        labels.add(key, Requirement::is_in(["true"]));
    }
    labels
}

/// Returns the capacity of an in-flight node for any of its offerings, before DaemonSet overhead.
pub fn in_flight_node_of(
    host: NodeRef,
    pool: &Pool,
    offerings: &[OfferingKey],
    catalog: &Catalog,
    labels: &Labels,
) -> Option<ExistingNode> {
    let mut types: Vec<&InstanceType> = offerings
        .iter()
        .filter_map(|offering| catalog.get(offering.instance_type.as_str()))
        .collect();
    types.dedup_by_key(|instance_type| &instance_type.name);
    let mut free = types.first()?.allocatable.clone();
    for instance_type in &types {
        let mut excess = free.clone();
        excess.subtract(&instance_type.allocatable);
        for (name, amount) in excess.iter().filter(|(_, amount)| *amount > 0) {
            let mut taken = Resources::default();
            taken.set_amount(name, amount);
            free.subtract(&taken);
        }
    }
    let mut labels_to_come = claim_labels(pool, offerings, &types);
    let ids = offerings.iter().map(|offering| catalog.zone_ids().get(&offering.zone));
    if let Some(ids) = ids.collect::<Option<BTreeSet<_>>>().filter(|ids| !ids.is_empty()) {
        labels_to_come.add(ZONE_ID, Requirement::is_in(ids.into_iter().cloned()));
    }
    labels_to_come.add_all(&Requirements::from_labels(labels));
    Some(ExistingNode {
        host,
        labels: Arc::new(labels_to_come),
        taints: pool.taints.clone(),
        free,
        daemons: Vec::new(),
        host_ports: BTreeSet::new(),
        initialized: false,
        idle: false,
        open: true,
    })
}

/// Returns the DaemonSets that will run on a node, and whether each is certain for all values that
/// its labels may have. Source: spec/scheduling.md §2.9.
fn expected_daemons<'a>(
    sets: impl Iterator<Item = &'a (&'a DaemonSet, Vec<Requirements>)>,
    taints: &[Taint],
    labels: &Requirements,
) -> Vec<(&'a DaemonSet, bool)> {
    let mut coming = Vec::new();
    for (set, wanted) in sets {
        let fits = first_untolerated(taints, &set.template.tolerations).is_none()
            && wanted
                .iter()
                .any(|requirements| labels.check_compatible(requirements, false).is_ok());
        if fits {
            let is_sure = wanted.iter().any(|requirements| are_always_met(requirements, labels));
            coming.push((*set, is_sure));
        }
    }
    coming
}

/// Returns whether the requirements are met by each value that the labels may have.
fn are_always_met(requirements: &Requirements, labels: &Requirements) -> bool {
    requirements.iter().all(|(key, wanted)| match labels.get(key) {
        Some(label) => label
            .values()
            .is_some_and(|values| values.iter().all(|value| wanted.allows_value(value))),
        None => wanted.allows_absence(),
    })
}

/// Returns the offering of the instance, once it exists.
pub(crate) fn offering_of(claim: &NodeClaim) -> Option<&OfferingKey> {
    claim.instance.as_ref().map(|instance| &instance.offering)
}

/// Returns the offerings of a claim. Once its instance exists, this is only the offering of the
/// instance.
pub(super) fn offerings_of(claim: &NodeClaim) -> &[OfferingKey] {
    offering_of(claim).map_or(&claim.offerings, std::slice::from_ref)
}

/// Returns the labels of the node of a claim: values that all its offerings have in common,
/// otherwise all possible zones and capacity types.
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
                .all(|instance_type| instance_type.requirements.get(key) == Some(requirement))
        {
            labels.add(key, requirement.clone());
        }
    }
    // If several values are possible, all are listed.
    for (key, value_of) in [
        (ZONE, (|offering: &OfferingKey| offering.zone.as_str()) as fn(&OfferingKey) -> &str),
        (CAPACITY_TYPE, |offering| offering.capacity_type.as_str()),
    ] {
        labels.add(key, Requirement::is_in(offerings.iter().map(value_of)));
    }
    if let Some(id) = offerings.first().and_then(|offering| offering.reservation.as_ref()) {
        labels.add(RESERVATION_ID, Requirement::is_in([id.as_str()]));
    }
    if let [only] = types {
        labels.add(INSTANCE_TYPE, Requirement::is_in([only.name.as_str()]));
    }
    labels
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::SignedDuration;

    use crate::model::claim::ClaimPhase;
    use crate::model::cluster::Cluster;
    use crate::model::id::ObjectKey;
    use crate::model::labels::{HOSTNAME, INITIALIZED, NODE_NAME, POOL, REGISTERED, ZONE};
    use crate::model::node::Node;
    use crate::model::pod::{DaemonSet, Owner, Pod};
    use crate::model::pool::{Pool, Reason};
    use crate::model::requirement::Requirement;
    use crate::model::taint::{Effect, Taint};
    use crate::model::watched_object::{
        CsiNode, Namespace, StorageClass, VolumeClaim, WatchedObject,
    };
    use crate::state::State;
    use crate::state::fixtures::{NOW, claim, node, pod, waiting};
    use crate::state::node_capacity::{GOING, daemons_of};
    use crate::state::node_claims::NodeClaim;
    use crate::state::snapshot::{ExistingNode, NodeRef};

    /// A state with the pool `general`, whose nodes are labelled `team=x`.
    fn state() -> State {
        let mut pool = Pool::new("general");
        pool.labels.insert("team".into(), "x".into());
        let cluster = Cluster { pools: vec![pool], ..Cluster::default() };
        State { cluster: Arc::new(cluster), ..State::default() }
    }

    fn changed(name: &str, change: impl FnOnce(&mut Node)) -> WatchedObject {
        match node(name) {
            WatchedObject::Node(mut changed_node) => {
                change(&mut changed_node);
                WatchedObject::Node(changed_node)
            }
            other => other,
        }
    }

    fn existing_node(state: &State, node: &str) -> ExistingNode {
        let host = NodeRef::Node(node.into());
        let existing_nodes = state.snapshot(NOW).rooms;
        let found = existing_nodes.into_iter().find(|existing_node| existing_node.host == host);
        found.expect("every node is in the snapshot")
    }

    #[test]
    fn unschedulable_nodes_are_listed_as_closed() {
        let tainted = |key: &str| {
            let taint = Taint::new(key, Effect::NoSchedule);
            changed("n", |node| node.taints.push(taint))
        };
        let in_phase = |phase: ClaimPhase| Some(claim("c", Some("n"), phase));
        let leaving = || {
            let mut leaving = claim("c", Some("n"), ClaimPhase::Draining);
            leaving.leaving = Some(Reason::Expired);
            leaving.since = NOW - GOING;
            Some(leaving)
        };
        let cases: [(&str, WatchedObject, Option<NodeClaim>, bool); 10] = [
            ("plain", node("n"), None, true),
            ("ours", node("n"), in_phase(ClaimPhase::Initialized), true),
            ("new", node("n"), in_phase(ClaimPhase::Launched), true),
            ("other taint", tainted("a/b"), None, true),
            (
                "cordoned",
                changed("n", |changed_node| changed_node.unschedulable = true),
                None,
                false,
            ),
            (
                "deleted",
                changed("n", |changed_node| changed_node.deleting = Some(NOW)),
                None,
                false,
            ),
            ("disrupted", tainted("karpenter.sh/disrupted"), None, false),
            ("draining for a long time", node("n"), leaving(), false),
            ("ending", node("n"), in_phase(ClaimPhase::Terminating), false),
            ("gone", node("n"), in_phase(ClaimPhase::Gone), false),
        ];
        for (name, node, claim, open) in cases {
            let mut state = state();
            claim.into_iter().for_each(|given| state.ledger.insert(given));
            state.objects.apply(node, NOW);
            state.objects.apply(pod("default", "p", "n").into(), NOW);
            let existing_node = existing_node(&state, "n");
            assert_eq!(existing_node.open, open, "{name}");
            for key in [HOSTNAME, NODE_NAME] {
                let label = existing_node.labels.get(key).map(ToString::to_string);
                assert_eq!(label.as_deref(), Some("in [n]"), "{name}");
            }
            assert_eq!(existing_node.free.cpu_milli, 900, "{name}");
            let residents = state.snapshot(NOW).residents.len();
            assert_eq!(residents, 1, "{name}");
        }
    }

    #[test]
    fn recently_draining_node_is_excluded_from_the_snapshot() {
        for (minutes, existing_nodes) in [(0, 0), (4, 0), (5, 1)] {
            let mut state = state();
            let mut draining = claim("c", Some("n"), ClaimPhase::Draining);
            draining.leaving = Some(Reason::Underutilized);
            draining.since = NOW - SignedDuration::from_mins(minutes);
            state.ledger.insert(draining);
            state.objects.apply(node("n"), NOW);
            let snapshot = state.snapshot(NOW);
            assert_eq!(snapshot.rooms.len(), existing_nodes, "{minutes}");
        }
    }

    #[test]
    fn claim_without_node_has_capacity_unless_it_is_disrupted() {
        for (leaving, existing_nodes) in [(None, 1), (Some(Reason::TimedOut), 0)] {
            let mut state =
                State { catalog: Arc::new(crate::catalog::Catalog::shipped()), ..state() };
            let mut launching = claim("c", None, ClaimPhase::Launching);
            launching.leaving = leaving;
            let mut types = state.catalog.types();
            let (at, offering) =
                types.find_map(|it| Some((it, it.offerings.first()?))).expect("an offering");
            launching.offerings = vec![offering.key(&at.name)];
            state.ledger.insert(launching);
            let snapshot = state.snapshot(NOW);
            assert_eq!(snapshot.rooms.len(), existing_nodes, "{leaving:?}");
            assert!(snapshot.rooms.iter().all(|existing_node| existing_node.open));
        }
    }

    #[test]
    fn starting_node_has_its_final_labels_unless_it_is_cordoned() {
        let starting = |closed: bool| {
            changed("n", |node| {
                node.labels.retain(|key, _| key != REGISTERED && key != INITIALIZED);
                node.taints = vec![
                    Taint::new("node.kubernetes.io/not-ready", Effect::NoSchedule),
                    Taint::new("a/b", Effect::NoSchedule),
                ];
                node.unschedulable = closed;
            })
        };
        for (closed, taints, labels) in [(false, 1, Some("in [x]")), (true, 2, None)] {
            let mut state = state();
            let mut launched = claim("c", Some("n"), ClaimPhase::Launched);
            launched.labels.insert("for".into(), "its-pods".into());
            state.ledger.insert(launched);
            state.objects.apply(starting(closed), NOW);
            let existing_node = existing_node(&state, "n");
            assert_eq!(existing_node.taints.len(), taints);
            let team = existing_node.labels.get("team").map(ToString::to_string);
            assert_eq!(team.as_deref(), labels);
            for key in [POOL, "for"] {
                assert_eq!(existing_node.labels.get(key).is_some(), !closed, "{key}");
            }
            assert!(!existing_node.initialized);
        }
    }

    #[test]
    fn capacity_is_reserved_for_missing_daemon_pods() {
        let daemon_set = |name: &str, selector: &str| {
            let mut template = pod("kube-system", name, "");
            template.node_selector.insert("team".into(), selector.into());
            WatchedObject::DaemonSet(Box::new(DaemonSet {
                key: ObjectKey::new("kube-system", name),
                template,
            }))
        };
        let mut state = state();
        let labelled = changed("n", |node| {
            node.labels.insert("team".into(), "x".into());
        });
        state.objects.apply(labelled, NOW);
        state.objects.apply(daemon_set("here", "x"), NOW);
        state.objects.apply(daemon_set("not-here", "y"), NOW);
        assert_eq!(existing_node(&state, "n").free.cpu_milli, 900);
        let here = ObjectKey::new("kube-system", "here");
        assert_eq!(existing_node(&state, "n").daemons, [(here, true)]);
        let mut running = pod("kube-system", "here-1", "n");
        running.owner =
            Some(Owner { kind: "DaemonSet".into(), name: "here".into(), uid: String::new() });
        state.objects.apply(running.into(), NOW);
        assert_eq!(existing_node(&state, "n").free.cpu_milli, 900);
        assert_eq!(existing_node(&state, "n").daemons, []);
    }

    #[test]
    fn daemon_pods_may_depend_on_an_undecided_zone() {
        let daemon_set = |zones: &[&str]| {
            let mut template = pod("kube-system", "d", "");
            let zones = Requirement::is_in(zones.iter().copied());
            template.node_affinity = vec![[(ZONE, zones)].into_iter().collect()];
            DaemonSet { key: ObjectKey::new("kube-system", "d"), template }
        };
        let mut state = state();
        state.objects.apply(node("n"), NOW);
        let mut existing_node = existing_node(&state, "n");
        let both = Requirement::is_in(["a", "b"]);
        Arc::make_mut(&mut existing_node.labels).add(ZONE, both);
        for (zones, expect) in
            [(&["a", "b", "c"][..], vec![true]), (&["b"], vec![false]), (&["c"], vec![])]
        {
            let missing = daemons_of(&existing_node, &[&daemon_set(zones)]);
            let sure: Vec<bool> = missing.into_iter().map(|(_, is_sure)| is_sure).collect();
            assert_eq!(sure, expect, "{zones:?}");
        }
    }

    #[test]
    fn nominated_pods_reserve_capacity_and_volume_attachments() {
        let mut state = state();
        let mut registered = claim("c", Some("n"), ClaimPhase::Registered);
        registered.pods = [ObjectKey::new("default", "promised")].into();
        state.ledger.insert(registered);
        let driver = "ebs.csi.aws.com";
        state.objects.apply(node("n"), NOW);
        state.objects.apply(node("m"), NOW);
        let limits =
            CsiNode { name: "n".into(), limits: vec![(driver.into(), 5), ("other".into(), 5)] };
        state.objects.apply(WatchedObject::CsiNode(limits), NOW);
        let class = StorageClass {
            name: "late".into(),
            provisioner: driver.into(),
            waits_for_consumer: true,
            ..StorageClass::default()
        };
        state.objects.apply(WatchedObject::StorageClass(class), NOW);
        let mounting = |mut pod: Pod, claim: &str, state: &mut State| {
            pod.volume_claims.push(claim.into());
            let claim = VolumeClaim {
                key: ObjectKey::new("default", claim),
                storage_class: "late".into(),
                ..VolumeClaim::default()
            };
            state.objects.apply(WatchedObject::VolumeClaim(claim), NOW);
            state.objects.apply(pod.into(), NOW);
        };
        mounting(pod("default", "there", "n"), "a", &mut state);
        mounting(waiting("default", "promised"), "b", &mut state);
        let resource = format!("attachable-volumes-csi-{driver}");
        let left = |state: &State, node: &str| {
            let free = existing_node(state, node).free;
            (free.cpu_milli, free.extended.get(&resource).copied())
        };
        // No pods with volumes are pending yet.
        assert_eq!(left(&state, "n"), (800, None));
        mounting(waiting("default", "pending"), "c", &mut state);
        assert_eq!(left(&state, "n"), (800, Some(3)));
        assert_eq!(left(&state, "m"), (1000, None));
        assert_eq!(existing_node(&state, "n").free.extended.len(), 1);

        let team = Namespace {
            name: "default".into(),
            uid: String::new(),
            labels: [("team".to_owned(), "x".to_owned())].into(),
        };
        state.objects.apply(WatchedObject::Namespace(team), NOW);
        let snapshot = state.snapshot(NOW);
        let pending: Vec<&str> = snapshot.pending.iter().map(|set| &set.key.name[..]).collect();
        assert_eq!(pending, ["pending"]);
        let mounts: Vec<i64> =
            snapshot.mounts.values().map(|mount| mount.attached[&resource]).collect();
        assert_eq!(mounts, [1]);
        let promised = &snapshot.promised[&NodeRef::Node("n".into())];
        assert_eq!(promised.len(), 1);
        assert_eq!(snapshot.namespaces["default"].len(), 1);
    }
}
