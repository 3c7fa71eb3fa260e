//! The scheduling problem in dense ordinals. Pods with equal constraints form a kind. Pods of a
//! kind with equal requests form a class.

/// Resource amounts as vectors, and how many copies of a request fit.
pub(super) mod resource_vector;
/// Pod affinity, anti-affinity and topology spread.
pub(super) mod pod_constraints;
/// DaemonSets that pod constraints select, and the requirements of pods on them.
pub(super) mod daemon_constraints;
/// Topology spread that kube-scheduler applies by default.
pub(super) mod default_constraints;
/// Preferences of pods, relaxed one by one.
pub(super) mod preferences;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::model::cluster::PreferencePolicy;

use crate::model::labels::Labels;
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::model::taint::Toleration;
use crate::scheduling::index::{
    ConstraintsIndex, GroupIndex, IndexVec, KindIndex, PodClassIndex, RequirementsIndex,
    SignatureIndex,
};
use crate::scheduling::problem::daemon_constraints::{
    ConstrainedDaemons, DaemonRequirements, HostPort,
};
use crate::scheduling::problem::default_constraints::DefaultConstraints;
use crate::scheduling::problem::pod_constraints::{GroupMembership, PodConstraints, PodGroups};
use crate::scheduling::problem::preferences::{PodShapeKey, label_alternatives};
use crate::scheduling::problem::resource_vector::ResourceIndex;
use crate::state::snapshot::Snapshot;

/// Requirements of pods on a node, independent of other pods.
#[derive(Debug)]
pub(super) struct NodeRequirements<'a> {
    /// Alternative label requirements, in the order of the pod.
    pub(super) alternatives: Vec<Requirements>,
    /// Tolerations of the pods.
    pub(super) tolerations: &'a [Toleration],
    /// Host ports that the pods bind.
    pub(super) ports: &'a BTreeSet<HostPort>,
    /// Requirements on the DaemonSet pods of a new node.
    pub(super) company: DaemonRequirements,
}

/// Pods with equal constraints, independent of resource requests.
#[derive(Debug)]
pub(super) struct ConstraintClass {
    /// Node requirements of the pods.
    pub(super) wants: RequirementsIndex,
    /// Node requirements without preferences and volumes: they select the nodes that topology
    /// spreads include.
    pub(super) bare: RequirementsIndex,
    /// Topology rules of the pods.
    pub(super) rules: ConstraintsIndex,
    /// Group memberships of the pods: an index into [`Problem::members`].
    pub(super) signature: SignatureIndex,
    /// The kind after relaxing one more preference.
    pub(super) next: Option<KindIndex>,
    /// Whether the pods depend on DaemonSet pods of their node to satisfy their affinity. The
    /// previous kind has the same preferences, but does not depend on DaemonSet pods.
    pub(super) is_beside: bool,
}

/// Identical pods.
#[derive(Debug)]
pub(super) struct PodClass<'a> {
    /// The kind of the pods with all preferences.
    pub(super) kind: KindIndex,
    /// Requests of one pod.
    pub(super) demand: Vec<i64>,
    /// Reciprocal of the demand; infinite for zero.
    pub(super) per_unit: Vec<f64>,
    /// The priority of the pods.
    pub(super) priority: i32,
    /// The pods, by key.
    pub(super) pods: Vec<&'a Pod>,
}

/// The pods to schedule.
#[derive(Debug)]
pub(super) struct Problem<'a> {
    /// Names of the resources.
    pub(super) axes: ResourceIndex,
    /// Distinct node requirements.
    pub(super) wants: IndexVec<RequirementsIndex, NodeRequirements<'a>>,
    /// Distinct topology rules.
    pub(super) rules: IndexVec<ConstraintsIndex, PodConstraints>,
    /// The pod groups that topology rules select.
    pub(super) groups: PodGroups,
    /// Group membership by signature.
    pub(super) members: IndexVec<SignatureIndex, GroupMembership>,
    /// DaemonSets that topology rules select, or that have topology rules.
    pub(super) agents: ConstrainedDaemons<'a>,
    /// Kinds of pods.
    pub(super) kinds: IndexVec<KindIndex, ConstraintClass>,
    /// The pods: most cpu first, then most memory, then by key of their first pod.
    pub(super) classes: IndexVec<PodClassIndex, PodClass<'a>>,
}

impl<'a> Problem<'a> {
    /// Groups pods into classes, independent of input order.
    pub(super) fn new(pods: &[&'a Pod], snapshot: &'a Snapshot<'a>) -> Self {
        let requests = pods.iter().flat_map(|pod| &pod.requests.extended);
        let attached = pods
            .iter()
            .filter_map(|pod| snapshot.mounts.get(&pod.key))
            .flat_map(|mounts| &mounts.attached);
        let axes = ResourceIndex::from_names(requests.chain(attached));
        let mut sorted: Vec<&'a Pod> = pods.to_vec();
        if !sorted.is_sorted_by(|one, other| one.key < other.key) {
            sorted.sort_by(|one, other| one.key.cmp(&other.key));
        }
        let mut builder = ProblemBuilder::default();
        let mut defaults = DefaultConstraints::new(snapshot);
        let policy = snapshot.cluster.scheduling.preferences;
        let keyed: Vec<(usize, usize)> = sorted
            .iter()
            .map(|pod| {
                let labels = builder.labels_ordinal(pod);
                let mounts = snapshot.mounts.get(&pod.key);
                let spec = PodShapeKey::from_pod(pod, mounts, defaults.ordinal_for(pod, labels));
                (builder.spec_ordinal(spec, pod, policy, &defaults), labels)
            })
            .collect();
        let residents = snapshot.residents.iter().map(|it| it.anti_affinity);
        let promised = snapshot.promised.values().flatten();
        let daemons = snapshot.daemon_sets.iter().map(|set| &set.template);
        let others = promised.copied().chain(daemons);
        let standing = residents.chain(others.map(|pod| &pod.anti_affinity[..]));
        for term in standing.flatten() {
            builder.groups.of_terms(&[term]);
            builder.groups.key_ordinal(&term.topology_key);
        }
        let signatures = builder.assign_signatures(snapshot);
        builder.agents = ConstrainedDaemons::new(
            snapshot,
            &builder.groups,
            &builder.members,
            &builder.rules,
            |ports| {
                let mut wants = builder.wants.iter();
                wants.any(|wants| have_port_conflict(wants.ports, ports))
            },
        );
        let kinds = sorted.into_iter().zip(keyed);
        let kinds = kinds
            .map(|(pod, (spec, labels))| (pod, builder.kind_ordinal(spec, signatures[labels])));
        let classes = group_into_classes(kinds, &axes, snapshot);
        Self {
            axes,
            wants: builder.wants,
            rules: builder.rules,
            groups: builder.groups,
            members: builder.members,
            agents: builder.agents,
            kinds: builder.kinds,
            classes,
        }
    }

    /// The number of pods of each class.
    pub(super) fn pods_per_class(&self) -> IndexVec<PodClassIndex, u64> {
        self.classes.iter().map(|class| class.pods.len() as u64).collect()
    }

    /// Returns whether the host ports of two kinds conflict.
    pub(super) fn ports_clash(&self, one: KindIndex, other: KindIndex) -> bool {
        have_port_conflict(self.wants_of(one).ports, self.wants_of(other).ports)
    }

    /// Returns the node requirements of a kind.
    pub(super) fn wants_of(&self, kind: KindIndex) -> &NodeRequirements<'a> {
        &self.wants[self.kinds[kind].wants]
    }

    /// Returns the topology rules of a kind.
    pub(super) fn rules_of(&self, kind: KindIndex) -> &PodConstraints {
        &self.rules[self.kinds[kind].rules]
    }

    /// Returns whether pods of a kind are members of a group.
    pub(super) fn is_member(&self, kind: KindIndex, group: GroupIndex) -> bool {
        self.members[self.kinds[kind].signature][group]
    }

    /// Returns whether pods of a kind rely on DaemonSet pods of a group.
    pub(super) fn relies_on_daemons(&self, kind: KindIndex, group: GroupIndex) -> bool {
        let beside = self.wants_of(kind).company.beside.iter();
        let mut agents = beside.flat_map(|(agents, _)| agents);
        agents.any(|agent| self.agents.is_member(*agent, group))
    }

    /// Returns the kind without preferences. If the kind relies on DaemonSet pods, so does the
    /// result.
    pub(super) fn without_preferences(&self, kind: KindIndex) -> KindIndex {
        let left = self.kinds_without_preferences(kind);
        match self.kinds[kind].is_beside {
            true => *left.end(),
            false => *left.start(),
        }
    }

    /// Returns the kinds without preferences: one that relies on no DaemonSet pod, and, if any, one
    /// that does.
    pub(super) fn kinds_without_preferences(&self, kind: KindIndex) -> RangeInclusive<KindIndex> {
        // The kinds of a pod are consecutive.
        let mut last = kind;
        while let Some(next) = self.kinds[last].next {
            last = next;
        }
        KindIndex(last.0 - usize::from(self.kinds[last].is_beside))..=last
    }
}

/// Ordinals after relaxing preferences: node requirements, topology rules, and node requirements
/// without preferences and volumes.
type RelaxationLevel = (RequirementsIndex, ConstraintsIndex, RequirementsIndex);

/// Assigns ordinals to distinct properties of pods. Pods are sorted by key, so most pods equal the
/// previous one. Other pods are looked up in ordered maps, not by hash: the properties have many
/// parts, and hashing them takes longer than comparing them. A lookup compares a pod with at most
/// the logarithm of the number of others.
#[derive(Default)]
struct ProblemBuilder<'a> {
    specs: BTreeMap<PodShapeKey<'a>, usize>,
    last_spec: Option<(PodShapeKey<'a>, usize)>,
    /// Relaxation levels of each spec.
    levels: Vec<Vec<RelaxationLevel>>,
    wants: IndexVec<RequirementsIndex, NodeRequirements<'a>>,
    rules: IndexVec<ConstraintsIndex, PodConstraints>,
    groups: PodGroups,
    label_sets: BTreeMap<(&'a str, &'a Labels), usize>,
    last_labels: usize,
    /// Entries by ordinal.
    by_labels: Vec<(&'a str, &'a Labels)>,
    members: IndexVec<SignatureIndex, GroupMembership>,
    agents: ConstrainedDaemons<'a>,
    kinds: IndexVec<KindIndex, ConstraintClass>,
    known: BTreeMap<(usize, SignatureIndex), KindIndex>,
    known_wants: BTreeMap<WantsKey<'a>, RequirementsIndex>,
    known_rules: BTreeMap<PodConstraints, ConstraintsIndex>,
    known_company: BTreeMap<(RequirementsIndex, DaemonRequirements), RequirementsIndex>,
}

type WantsKey<'a> = (Vec<Requirements>, &'a [Toleration], &'a BTreeSet<HostPort>);

impl<'a> ProblemBuilder<'a> {
    fn spec_ordinal(
        &mut self,
        spec: PodShapeKey<'a>,
        pod: &'a Pod,
        policy: PreferencePolicy,
        defaults: &DefaultConstraints<'a>,
    ) -> usize {
        if let Some((_, known)) = self.last_spec.filter(|(last, _)| *last == spec) {
            return known;
        }
        if let Some(known) = self.specs.get(&spec) {
            self.last_spec = Some((spec, *known));
            return *known;
        }
        let levels = spec.relaxation_levels(policy, defaults, &mut self.groups);
        let bare = label_alternatives(spec.node_selector, spec.node_affinity, &[]);
        let bare = self.wants_ordinal(bare, pod);
        let mut ordinals = Vec::with_capacity(levels.len());
        for (alternatives, rules) in levels {
            let wants = self.wants_ordinal(alternatives, pod);
            let rules = self.known_rules.entry(rules);
            let rules =
                *rules.or_insert_with_key(|rules| self.rules.push_and_get_key(rules.clone()));
            ordinals.push((wants, rules, bare));
        }
        self.levels.push(ordinals);
        self.specs.insert(spec, self.levels.len() - 1);
        self.levels.len() - 1
    }

    fn wants_ordinal(
        &mut self,
        alternatives: Vec<Requirements>,
        pod: &'a Pod,
    ) -> RequirementsIndex {
        let key = (alternatives, &pod.tolerations[..], &pod.host_ports);
        if let Some(known) = self.known_wants.get(&key) {
            return *known;
        }
        let wants = self.wants.push_and_get_key(NodeRequirements {
            alternatives: key.0.clone(),
            tolerations: key.1,
            ports: key.2,
            company: DaemonRequirements::default(),
        });
        self.known_wants.insert(key, wants);
        wants
    }

    fn labels_ordinal(&mut self, pod: &'a Pod) -> usize {
        let key = (pod.key.namespace.as_str(), &pod.labels);
        if self.by_labels.get(self.last_labels) != Some(&key) {
            self.last_labels = *self.label_sets.entry(key).or_insert_with(|| {
                self.by_labels.push(key);
                self.by_labels.len() - 1
            });
        }
        self.last_labels
    }

    /// Returns the signature of every label set.
    fn assign_signatures(&mut self, snapshot: &Snapshot<'_>) -> Vec<SignatureIndex> {
        let mut known: BTreeMap<GroupMembership, SignatureIndex> = BTreeMap::new();
        let mut signatures = Vec::with_capacity(self.by_labels.len());
        for (namespace, labels) in &self.by_labels {
            let groups = self.groups.membership_of(namespace, labels, &snapshot.namespaces);
            let next = SignatureIndex(known.len());
            signatures.push(*known.entry(groups).or_insert(next));
        }
        self.members = by_ordinal(known);
        signatures
    }

    fn kind_ordinal(&mut self, spec: usize, signature: SignatureIndex) -> KindIndex {
        if let Some(known) = self.known.get(&(spec, signature)) {
            return *known;
        }
        let first = KindIndex(self.kinds.len());
        let levels = self.levels_with_daemons(spec, signature);
        for (level, ((wants, rules, bare), is_beside)) in levels.iter().enumerate() {
            let last = level + 1 == levels.len();
            self.kinds.push(ConstraintClass {
                wants: *wants,
                bare: *bare,
                rules: *rules,
                signature,
                next: (!last).then_some(KindIndex(first.0 + level + 1)),
                is_beside: *is_beside,
            });
        }
        self.known.insert((spec, signature), first);
        first
    }
}

impl ProblemBuilder<'_> {
    /// Returns the levels of a spec with requirements on DaemonSet pods. Each level occurs again if
    /// DaemonSet pods can satisfy its affinity.
    fn levels_with_daemons(
        &mut self,
        spec: usize,
        signature: SignatureIndex,
    ) -> Vec<(RelaxationLevel, bool)> {
        let levels = self.levels[spec].clone();
        if self.agents.keys().next().is_none() {
            return levels.into_iter().map(|level| (level, false)).collect();
        }
        let mut all = Vec::new();
        for (wants, rules, bare) in levels {
            let constraints = &self.rules[rules];
            let members = &self.members[signature];
            let company = self.agents.conflicting_daemons(constraints, members, &self.groups);
            let with_daemons = self.agents.required_daemons(constraints, &company, &self.groups);
            let without = self.with_daemon_requirements(wants, company);
            all.push(((without, rules, bare), false));
            if let Some(company) = with_daemons {
                let with = self.with_daemon_requirements(wants, company);
                all.push(((with, rules, bare), true));
            }
        }
        all
    }

    fn with_daemon_requirements(
        &mut self,
        wants: RequirementsIndex,
        company: DaemonRequirements,
    ) -> RequirementsIndex {
        let requirements = &self.wants[wants];
        let evading = self
            .agents
            .evading_requirements(&company, |ports| have_port_conflict(requirements.ports, ports));
        if company == DaemonRequirements::default() && evading.is_empty() {
            return wants;
        }
        let mut alternatives = requirements.alternatives.clone();
        for evading in evading {
            let all = requirements.alternatives.iter();
            alternatives.extend(all.map(|alternative| alternative.merged_with(&evading)));
        }
        let requirements =
            NodeRequirements { alternatives, company: company.clone(), ..*requirements };
        let known = self.known_company.entry((wants, company));
        *known.or_insert_with(|| self.wants.push_and_get_key(requirements))
    }
}

/// Groups pods into classes, largest requests first.
fn group_into_classes<'a>(
    pods: impl Iterator<Item = (&'a Pod, KindIndex)>,
    axes: &ResourceIndex,
    snapshot: &Snapshot<'_>,
) -> IndexVec<PodClassIndex, PodClass<'a>> {
    let mut known: BTreeMap<(KindIndex, Vec<i64>, i32), PodClassIndex> = BTreeMap::new();
    let mut all: IndexVec<PodClassIndex, PodClass<'a>> = IndexVec::default();
    // Most pods equal the previous one.
    let mut last: Option<((KindIndex, i32, &Resources), PodClassIndex)> = None;
    for (pod, kind) in pods {
        let mounts = snapshot.mounts.get(&pod.key);
        let same = (kind, pod.priority, &pod.requests);
        if let Some((_, class)) = last.filter(|last| mounts.is_none() && last.0 == same) {
            all[class].pods.push(pod);
            continue;
        }
        let demand = axes.demand_of(&pod.requests, mounts);
        let key = (kind, demand, pod.priority);
        let class = *known.entry(key).or_insert_with_key(|(_, demand, _)| {
            #[expect(
                clippy::cast_precision_loss,
                reason = "only for estimates; what fits is decided with integers"
            )]
            let per_unit = demand.iter().map(|amount| 1.0 / *amount as f64);
            all.push_and_get_key(PodClass {
                kind,
                demand: demand.clone(),
                per_unit: per_unit.collect(),
                priority: pod.priority,
                pods: Vec::new(),
            })
        });
        all[class].pods.push(pod);
        last = mounts.is_none().then_some((same, class));
    }
    // By cpu, then memory.
    all.sort_by(|one, other| {
        other.demand[..2]
            .cmp(&one.demand[..2])
            .then_with(|| one.pods[0].key.cmp(&other.pods[0].key))
    });
    all
}

/// Returns the keys in the order of their ordinals.
pub(super) fn by_ordinal<I: Copy + Ord, T>(known: BTreeMap<T, I>) -> IndexVec<I, T> {
    let mut all: Vec<(T, I)> = known.into_iter().collect();
    all.sort_by_key(|(_, ordinal)| *ordinal);
    all.into_iter().map(|(key, _)| key).collect()
}

/// Returns whether two host ports conflict: same protocol and number, and the same address or all
/// addresses on either side. Source: spec/scheduling.md §2.11.
pub(super) fn is_port_conflict(one: &HostPort, other: &HostPort) -> bool {
    let mut addresses = [&one.1, &other.1].into_iter();
    one.0 == other.0
        && one.2 == other.2
        && (one.1 == other.1
            || addresses.any(|address| matches!(address.as_str(), "" | "0.0.0.0" | "::")))
}

/// Returns whether two sets of host ports conflict.
pub(super) fn have_port_conflict(one: &BTreeSet<HostPort>, other: &BTreeSet<HostPort>) -> bool {
    one.iter().any(|a| other.iter().any(|b| is_port_conflict(a, b)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::have_port_conflict;

    #[test]
    fn host_ports_conflict_on_the_same_or_the_wildcard_address() {
        let cases = [
            ("TCP", "", 80, true),
            ("TCP", "::", 80, true),
            ("TCP", "10.0.0.1", 80, true),
            ("TCP", "10.0.0.2", 80, false),
            ("UDP", "10.0.0.1", 80, false),
            ("TCP", "10.0.0.1", 81, false),
        ];
        let ports = |protocol: &str, address: &str, port: u16| {
            BTreeSet::from([(protocol.to_owned(), address.to_owned(), port)])
        };
        for (protocol, address, port, expect) in cases {
            let other = ports(protocol, address, port);
            assert_eq!(
                have_port_conflict(&ports("TCP", "10.0.0.1", 80), &other),
                expect,
                "{other:?}"
            );
        }
    }
}
