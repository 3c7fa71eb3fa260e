//! The problem in dense ordinals: what is asked for, by kinds and classes of pods that are alike.
//! It must not know which pools or hosts there are.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::id::PodKey;
use crate::model::labels::{Labels, restriction};
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::model::taint::Toleration;

/// A host port: protocol, address (empty for all) and number.
pub(super) type Port = (String, String, u16);

/// The names of the resources that matter, each an ordinal; amounts are vectors over them.
#[derive(Debug)]
pub(super) struct Axes(Vec<String>);

impl Axes {
    fn of<'a>(all: impl Iterator<Item = &'a Resources>) -> Self {
        let first = ["cpu", "memory", "ephemeral-storage", "pods"];
        let mut extended = BTreeSet::new();
        for (name, amount) in all.flat_map(|resources| &resources.extended) {
            if *amount > 0 && !extended.contains(name.as_str()) {
                extended.insert(name.as_str());
            }
        }
        Self(
            first
                .into_iter()
                .chain(extended)
                .map(str::to_owned)
                .collect(),
        )
    }

    /// What there is, or none at all where some amount is below zero: nothing fits there.
    pub(super) fn supply(&self, resources: &Resources) -> Option<Vec<i64>> {
        let whole = resources.iter().all(|(_, amount)| amount >= 0);
        whole.then(|| self.amounts(resources))
    }

    /// What is asked for; an amount below zero asks for nothing.
    fn demand(&self, resources: &Resources) -> Vec<i64> {
        let amounts = self.amounts(resources);
        amounts.into_iter().map(|amount| amount.max(0)).collect()
    }

    fn amounts(&self, resources: &Resources) -> Vec<i64> {
        self.0.iter().map(|name| resources.get(name)).collect()
    }

    /// The name of an axis.
    pub(super) fn name(&self, axis: usize) -> &str {
        &self.0[axis]
    }
}

/// How many times a demand fits into what is free.
pub(super) fn times(free: &[i64], demand: &[i64]) -> u64 {
    // Most are asked of what is too small, and a comparison is cheaper than a division.
    if free.iter().zip(demand).any(|(free, demand)| demand > free) {
        return 0;
    }
    let ratio = |(free, demand): (&i64, &i64)| match *demand {
        0 => u64::MAX,
        demand => u64::try_from(free / demand).unwrap_or(0),
    };
    free.iter().zip(demand).map(ratio).min().unwrap_or(u64::MAX)
}

/// Takes `count` demands out of what is free. They must fit.
pub(super) fn take(free: &mut [i64], demand: &[i64], count: u64) {
    for (free, demand) in free.iter_mut().zip(demand) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        *free = free.saturating_sub(demand.saturating_mul(count));
    }
}

/// Pods that may go to the same places, whatever they ask for.
#[derive(Debug)]
pub(super) struct Kind<'a> {
    /// What the labels of a node must satisfy: any one of these, in the pods' order.
    pub(super) alternatives: Vec<Requirements>,
    /// Taints they put up with.
    pub(super) tolerations: &'a [Toleration],
    /// Host ports they bind.
    pub(super) ports: &'a BTreeSet<Port>,
}

/// Pods that are alike to every host.
#[derive(Debug)]
pub(super) struct Class<'a> {
    /// Where they may go.
    pub(super) kind: usize,
    /// What one of them asks for.
    pub(super) demand: Vec<i64>,
    /// One divided by the demand, and infinite where nothing is asked for.
    pub(super) per_unit: Vec<f64>,
    /// Themselves, by key.
    pub(super) pods: Vec<&'a Pod>,
}

/// What is to be placed.
#[derive(Debug)]
pub(super) struct Problem<'a> {
    /// Names of the resources.
    pub(super) axes: Axes,
    /// Where pods may go.
    pub(super) kinds: Vec<Kind<'a>>,
    /// The pods: most cpu first, then most memory, then by key of their first pod.
    pub(super) classes: Vec<Class<'a>>,
}

/// What tells kinds apart.
type KindKey<'a> = (
    &'a Labels,
    &'a [Requirements],
    Vec<&'a Toleration>,
    &'a BTreeSet<Port>,
);

impl<'a> Problem<'a> {
    /// Sorts these pods into classes. Their order does not matter.
    pub(super) fn new(pods: &[&'a Pod]) -> Self {
        let axes = Axes::of(pods.iter().map(|pod| &pod.requests));
        let mut sorted: Vec<&'a Pod> = pods.to_vec();
        sorted.sort_by(|one, other| order(one).cmp(&order(other)));
        let mut problem = Self {
            axes,
            kinds: Vec::new(),
            classes: Vec::new(),
        };
        let mut kinds: BTreeMap<KindKey<'a>, usize> = BTreeMap::new();
        let mut classes: BTreeMap<(usize, Vec<i64>), usize> = BTreeMap::new();
        for pod in sorted {
            let kind = *kinds.entry(kind_key(pod)).or_insert_with(|| {
                problem.kinds.push(kind_of(pod));
                problem.kinds.len() - 1
            });
            let demand = problem.axes.demand(&pod.requests);
            let class = *classes.entry((kind, demand.clone())).or_insert_with(|| {
                problem.classes.push(class_of(kind, demand));
                problem.classes.len() - 1
            });
            problem.classes[class].pods.push(pod);
        }
        problem
    }

    /// How many pods each class has.
    pub(super) fn counts(&self) -> Vec<u64> {
        self.classes
            .iter()
            .map(|class| class.pods.len() as u64)
            .collect()
    }

    /// Whether pods of these kinds cannot share a host, because of their host ports.
    pub(super) fn ports_clash(&self, one: usize, other: usize) -> bool {
        clash(self.kinds[one].ports, self.kinds[other].ports)
    }
}

/// Most cpu first, then most memory, then by key, so that no two pods are equal.
fn order(pod: &Pod) -> (i64, i64, &PodKey) {
    let (cpu, memory) = (pod.requests.cpu_milli, pod.requests.memory);
    // The bitwise complement turns the order round for every integer, `MIN` included.
    (!cpu, !memory, &pod.key)
}

fn kind_key(pod: &Pod) -> KindKey<'_> {
    let mut tolerations: Vec<&Toleration> = pod.tolerations.iter().collect();
    tolerations.sort_unstable();
    tolerations.dedup();
    (
        &pod.node_selector,
        &pod.node_affinity,
        tolerations,
        &pod.host_ports,
    )
}

fn kind_of(pod: &Pod) -> Kind<'_> {
    Kind {
        alternatives: alternatives(pod),
        tolerations: &pod.tolerations,
        ports: &pod.host_ports,
    }
}

fn class_of<'a>(kind: usize, demand: Vec<i64>) -> Class<'a> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "only for estimates; what fits is decided with integers"
    )]
    let per_unit = demand.iter().map(|amount| 1.0 / *amount as f64).collect();
    Class {
        kind,
        demand,
        per_unit,
        pods: Vec::new(),
    }
}

/// What a pod's node selector and required node affinity ask of a node: any one of these.
/// Source: spec/scheduling.md §2.2 (pod requirements).
pub(super) fn alternatives(pod: &Pod) -> Vec<Requirements> {
    let selector = Requirements::from_labels(&pod.node_selector);
    if pod.node_affinity.is_empty() {
        return vec![selector];
    }
    let with = |term: &Requirements| {
        let mut both = selector.clone();
        both.add_all(term);
        both
    };
    pod.node_affinity.iter().map(with).collect()
}

/// The first label a pod asks for that nobody may ask for, and why not.
/// Source: spec/scheduling.md §1.4 (b).
pub(super) fn restricted(pod: &Pod) -> Option<(&str, &'static str)> {
    let terms = pod.node_affinity.iter().flat_map(Requirements::iter);
    let asked = pod.node_selector.keys().map(String::as_str);
    asked
        .chain(terms.map(|(key, _)| key))
        .find_map(|key| restriction(key).map(|why| (key, why)))
}

/// Whether two sets of host ports cannot be bound on one host: same protocol and number, and the
/// same address or all addresses on either side. Source: spec/scheduling.md §2.11.
pub(super) fn clash(one: &BTreeSet<Port>, other: &BTreeSet<Port>) -> bool {
    let everywhere = |address: &str| matches!(address, "" | "0.0.0.0" | "::");
    let same = |a: &Port, b: &Port| {
        a.0 == b.0 && a.2 == b.2 && (a.1 == b.1 || everywhere(&a.1) || everywhere(&b.1))
    };
    one.iter().any(|a| other.iter().any(|b| same(a, b)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Problem, clash, times};
    use crate::model::pod::Pod;

    #[test]
    fn host_ports_clash_on_one_address_or_all() {
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
                clash(&ports("TCP", "10.0.0.1", 80), &other),
                expect,
                "{other:?}"
            );
        }
    }

    #[test]
    fn a_demand_fits_as_often_as_its_scarcest_resource_allows() {
        let cases = [
            ([10, 9, 3], [2, 3, 1], 3),
            ([10, 9, 0], [2, 3, 1], 0),
            ([10, 9, 0], [2, 3, 0], 3),
            ([0, 0, 0], [0, 0, 0], u64::MAX),
            ([i64::MAX, 1, 1], [1, 1, 1], 1),
        ];
        for (free, demand, expect) in cases {
            assert_eq!(times(&free, &demand), expect, "{demand:?} in {free:?}");
        }
    }

    #[test]
    fn pods_that_are_alike_are_one_class_and_the_largest_come_first() {
        let pod = |name: &str, cpu: i64, zone: &str| {
            let mut pod = Pod::default();
            pod.key.name = name.to_owned();
            pod.requests.cpu_milli = cpu;
            pod.node_selector.insert("zone".to_owned(), zone.to_owned());
            pod
        };
        let pods = [
            pod("a", 1, "x"),
            pod("b", i64::MIN, "x"),
            pod("c", 2, "y"),
            pod("d", 1, "x"),
            pod("e", 1, "y"),
        ];
        let problem = Problem::new(&pods.iter().collect::<Vec<_>>());
        let name = |pod: &&Pod| pod.key.name.clone();
        let classes = problem.classes.iter();
        let names: Vec<String> = classes
            .map(|class| class.pods.iter().map(name).collect())
            .collect();
        assert_eq!(names, ["c", "ad", "e", "b"]);
    }
}
