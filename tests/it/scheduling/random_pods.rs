//! Random pods: few kinds with few labels, so that their constraints often interact.

use std::collections::BTreeSet;

use outrigger::model::affinity::{Gang, PodTerm, Preferred, TopologySpread};
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::{
    ARCH, CAPACITY_TYPE, HOSTNAME, Labels, NODE_NAME, RESERVATION_ID, ZONE,
};
use outrigger::model::pod::Pod;
use outrigger::model::requirement::{Operator, Requirement, Requirements};
use outrigger::model::selector::Selector;
use outrigger::model::taint::{Effect, Toleration, TolerationOperator};
use outrigger::state::snapshot::VolumeRequirements;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::select;
use proptest::{collection, option};

use super::fixture::{CPU, DEFAULT, GIB, label, pod, port, tolerates};

/// The second namespace. Its label `env` is `prod`, that of the default namespace is `dev`.
pub(crate) const OTHER: &str = "other";
pub(crate) const APPS: &[&str] = &["a", "b", "c"];
/// A label that pools and nodes may have.
pub(crate) const RACK: &str = "rack";
/// A label that no node has.
pub(crate) const UNUSED_LABEL: &str = "nobody-has-it";
/// A device that some types have.
pub(crate) const DEVICE: &str = "vendor/device";
/// The resource name of the attached volumes of a driver.
pub(crate) const DISKS: &str = "attachable-volumes-csi-disk";

/// Pods that differ only in their names, and perhaps in the zones of their volumes.
#[derive(Clone, Debug)]
pub(crate) struct Deployment {
    pub(crate) pod: Pod,
    pub(crate) replicas: usize,
    volumes: Volumes,
}

/// Sets of zones in which volumes can be used.
const VOLUME_ZONES: &[&[&str]] = &[&["a"], &["a", "b"], &["z"]];

/// The volumes of the pods of a Deployment.
#[derive(Clone, Debug)]
enum Volumes {
    None,
    /// Volumes that can be used in any of these zones.
    In(&'static [&'static str]),
    /// The volume of each pod is in another zone.
    Each,
    /// This number of volumes without topology.
    Attached(i64),
    Lost,
}

impl Deployment {
    /// The requirements of the volumes of one pod.
    pub(crate) fn mounts(&self, at: usize) -> Option<VolumeRequirements> {
        let zones = |zones: &[&str]| -> Vec<Requirements> {
            let one = |zone| Requirements::from_iter([(ZONE, Requirement::is_in([zone]))]);
            zones.iter().copied().map(one).collect()
        };
        let mut mounts = VolumeRequirements::default();
        match self.volumes {
            Volumes::None => return None,
            Volumes::In(all) => mounts.alternatives = zones(all),
            Volumes::Each => mounts.alternatives = zones(&[["a", "b", "c"][at % 3]]),
            Volumes::Attached(count) => {
                mounts.attached.insert(DISKS.to_owned(), count);
            }
            Volumes::Lost => mounts.fault = Some("its volume is lost".to_owned()),
        }
        Some(mounts)
    }
}

/// The pods that a selector should match.
#[derive(Clone, Debug)]
enum SelectorTarget {
    /// Pods with the labels of the pod itself.
    Own,
    /// Pods of one app.
    App(&'static str),
    /// Pods of all apps except one.
    But(&'static str),
    All,
    /// A contradictory selector.
    Never,
    /// No selector.
    None,
}

impl SelectorTarget {
    fn selector(&self, labels: &Labels) -> Option<Selector> {
        let is = |value: &str| (("app").to_owned(), Requirement::is_in([value]));
        Some(match self {
            Self::Own => Selector::from_labels(labels),
            Self::App(app) => Selector::new([is(app)]),
            Self::But(app) => Selector::new([("app".to_owned(), Requirement::not_in([*app]))]),
            Self::All => Selector::default(),
            Self::Never => Selector::new([is("a"), is("b")]),
            Self::None => return None,
        })
    }
}

fn a_selector_target() -> impl Strategy<Value = SelectorTarget> {
    prop_oneof![
        10 => Just(SelectorTarget::Own),
        4 => select(APPS).prop_map(SelectorTarget::App),
        1 => select(APPS).prop_map(SelectorTarget::But),
        1 => Just(SelectorTarget::All),
        1 => Just(SelectorTarget::Never),
        1 => Just(SelectorTarget::None),
    ]
}

fn a_topology_key() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        8 => Just(HOSTNAME),
        10 => Just(ZONE),
        3 => Just(CAPACITY_TYPE),
        2 => Just(RACK),
        1 => Just(UNUSED_LABEL),
    ]
}

/// The namespaces of a term: that of the pod, by name, or by labels.
#[derive(Clone, Debug)]
enum NamespaceScope {
    Own,
    Named(&'static str),
    Prod,
    Everywhere,
}

/// A term whose selector and namespaces depend on the pod.
#[derive(Clone, Debug)]
struct TermDraft(SelectorTarget, NamespaceScope, &'static str);

impl TermDraft {
    fn term(&self, namespace: &str, labels: &Labels) -> PodTerm {
        let Self(aim, reach, topology_key) = self;
        let named = match reach {
            NamespaceScope::Own => Some(namespace),
            NamespaceScope::Named(name) => Some(*name),
            NamespaceScope::Prod | NamespaceScope::Everywhere => None,
        };
        let prod = || Selector::from_labels(&Labels::from([label("env", "prod")]));
        PodTerm {
            selector: aim.selector(labels),
            namespaces: named.into_iter().map(ToOwned::to_owned).collect(),
            namespace_selector: match reach {
                NamespaceScope::Own | NamespaceScope::Named(_) => None,
                NamespaceScope::Prod => Some(prod()),
                NamespaceScope::Everywhere => Some(Selector::default()),
            },
            topology_key: (*topology_key).to_owned(),
        }
    }
}

fn a_term_draft() -> impl Strategy<Value = TermDraft> {
    let reach = prop_oneof![
        8 => Just(NamespaceScope::Own),
        1 => select(&[DEFAULT, OTHER][..]).prop_map(NamespaceScope::Named),
        1 => Just(NamespaceScope::Prod),
        1 => Just(NamespaceScope::Everywhere),
    ];
    (a_selector_target(), reach, a_topology_key())
        .prop_map(|(aim, reach, key)| TermDraft(aim, reach, key))
}

/// A spread without a selector, and the pods that the selector should match.
fn a_spread() -> impl Strategy<Value = (SelectorTarget, TopologySpread)> {
    let bounds = (1u32..4, prop_oneof![4 => Just(1u32), 1 => 2u32..5]);
    let policies = (option::weighted(0.8, Just(())), option::weighted(0.3, Just(())));
    let hard = option::weighted(0.8, Just(()));
    (a_selector_target(), a_topology_key(), bounds, policies, hard).prop_map(
        |(aim, key, (max_skew, min_domains), (affinity, taints), hard)| {
            let spread = TopologySpread {
                selector: None,
                topology_key: key.to_owned(),
                max_skew,
                min_domains: if hard.is_some() { min_domains } else { 1 },
                honors_affinity: affinity.is_some(),
                honors_taints: taints.is_some(),
                is_hard: hard.is_some(),
            };
            (aim, spread)
        },
    )
}

/// A spread without a selector.
pub(crate) fn a_default_spread() -> impl Strategy<Value = TopologySpread> {
    a_spread().prop_map(|(_, spread)| spread)
}

fn an_expression() -> impl Strategy<Value = (&'static str, Requirement)> {
    let number = |operator, n: &str| {
        Requirement::from_operator(operator, &[n.to_owned()]).expect("an integer")
    };
    prop_oneof![
        6 => select(&["a", "b", "c", "z"][..]).prop_map(|zone| (ZONE, Requirement::is_in([zone]))),
        3 => Just((ZONE, Requirement::is_in(["a", "b"]))),
        2 => Just((ZONE, Requirement::not_in(["a"]))),
        2 => Just((CAPACITY_TYPE, Requirement::is_in(["spot"]))),
        1 => Just((CAPACITY_TYPE, Requirement::is_in(["reserved"]))),
        1 => Just((RESERVATION_ID, Requirement::is_in(["cr-0", "cr-2"]))),
        1 => Just((RESERVATION_ID, Requirement::does_not_exist())),
        1 => Just(("team", Requirement::is_in(["x"]))),
        1 => Just(("team", Requirement::not_in(["x"]))),
        1 => Just(("team", Requirement::exists())),
        1 => Just(("team", Requirement::does_not_exist())),
        1 => Just((RACK, Requirement::is_in(["r1"]))),
        1 => Just((CPU, number(Operator::Gt, "2"))),
        1 => Just((CPU, number(Operator::Lt, "8"))),
        1 => Just((NODE_NAME, Requirement::is_in(["n0"]))),
        1 => Just((NODE_NAME, Requirement::not_in(["n0"]))),
    ]
}

fn a_node_term() -> impl Strategy<Value = Requirements> {
    collection::vec(an_expression(), 1..3).prop_map(|all| all.into_iter().collect())
}

/// Namespace and labels of a Deployment or a bound pod.
fn a_name() -> impl Strategy<Value = (&'static str, Labels)> {
    let namespace = prop_oneof![4 => Just(DEFAULT), 1 => Just(OTHER)];
    (namespace, select(APPS))
        .prop_map(|(namespace, app)| (namespace, Labels::from([label("app", app)])))
}

/// A toleration, which mostly tolerates all taints of random worlds.
fn a_toleration() -> impl Strategy<Value = Toleration> {
    let equal = |value: &str, effect| Toleration {
        operator: TolerationOperator::Equal,
        value: value.to_owned(),
        effect,
        ..tolerates("x")
    };
    prop_oneof![
        6 => Just(tolerates("x")),
        1 => Just(tolerates("y")),
        1 => Just(equal("1", None)),
        1 => Just(equal("", Some(Effect::NoSchedule))),
        1 => Just(equal("1", Some(Effect::NoExecute))),
    ]
}

/// A pod with requests and node constraints.
fn a_pod() -> impl Strategy<Value = Pod> {
    let amounts = (select(&[100, 900, 1000, 3500, 7000][..]), 1i64..40);
    let labels = (
        option::weighted(0.1, select(&["x", "y"][..])),
        option::weighted(0.15, select(&["amd64", "arm64"][..])),
    );
    let terms = prop_oneof![
        8 => Just(vec![]),
        2 => collection::vec(a_node_term(), 1..3),
    ];
    let extras = (
        option::weighted(0.6, a_toleration()),
        option::weighted(0.08, 80u16..82),
        option::weighted(0.07, 1i64..3),
    );
    (amounts, labels, terms, extras).prop_map(|((cpu, memory), (team, arch), terms, extras)| {
        let mut pod = pod("", cpu, memory * GIB / 2);
        pod.node_selector.extend(team.map(|team| label("team", team)));
        pod.node_selector.extend(arch.map(|arch| label(ARCH, arch)));
        pod.node_affinity = terms;
        pod.tolerations.extend(extras.0);
        pod.host_ports.extend(extras.1.map(port));
        let devices = extras.2.map(|count| (DEVICE.to_owned(), count));
        pod.requests.extended.extend(devices);
        pod
    })
}

/// The required and preferred constraints of a pod on other pods, and its preferred nodes.
#[derive(Clone, Debug)]
struct PodConstraints {
    spread: Vec<(SelectorTarget, TopologySpread)>,
    affinity: Vec<TermDraft>,
    anti_affinity: Vec<TermDraft>,
    near: Vec<(i32, TermDraft)>,
    away: Vec<(i32, TermDraft)>,
    nodes: Vec<(i32, Requirements)>,
}

fn sometimes<T: std::fmt::Debug>(
    percent: u32,
    of: impl Strategy<Value = T>,
) -> impl Strategy<Value = Vec<T>> {
    let some = collection::vec(of, 1..3);
    option::weighted(f64::from(percent) / 100.0, some).prop_map(Option::unwrap_or_default)
}

fn pod_constraints() -> impl Strategy<Value = PodConstraints> {
    let near = || (select(&[1, 50, 100][..]), a_term_draft());
    (
        sometimes(35, a_spread()),
        sometimes(15, a_term_draft()),
        sometimes(20, a_term_draft()),
        sometimes(8, near()),
        sometimes(8, near()),
        sometimes(8, (select(&[1, 50, 100][..]), a_node_term())),
    )
        .prop_map(|(spread, affinity, anti_affinity, near, away, nodes)| PodConstraints {
            spread,
            affinity,
            anti_affinity,
            near,
            away,
            nodes,
        })
}

impl PodConstraints {
    fn apply_to(self, pod: &mut Pod) {
        let (namespace, labels) = (pod.key.namespace.clone(), pod.labels.clone());
        let term = |draft: &TermDraft| draft.term(&namespace, &labels);
        let wish =
            |(weight, draft): &(i32, TermDraft)| Preferred { weight: *weight, term: term(draft) };
        pod.affinity = self.affinity.iter().map(term).collect();
        pod.anti_affinity = self.anti_affinity.iter().map(term).collect();
        pod.preferred_affinity = self.near.iter().map(wish).collect();
        pod.preferred_anti_affinity = self.away.iter().map(wish).collect();
        let node = |(weight, term)| Preferred { weight, term };
        pod.preferred_nodes = self.nodes.into_iter().map(node).collect();
        let spread = |(aim, mut spread): (SelectorTarget, TopologySpread)| {
            spread.selector = aim.selector(&labels);
            spread
        };
        pod.spread = self.spread.into_iter().map(spread).collect();
        // The API rejects two constraints that differ only in their selectors.
        let mut seen: BTreeSet<(String, bool)> = BTreeSet::new();
        pod.spread.retain(|constraint| {
            seen.insert((constraint.topology_key.clone(), constraint.is_hard))
        });
    }
}

pub(crate) fn a_deployment() -> impl Strategy<Value = Deployment> {
    let volumes = prop_oneof![
        20 => Just(Volumes::None),
        2 => select(VOLUME_ZONES).prop_map(Volumes::In),
        2 => Just(Volumes::Each),
        2 => (1i64..3).prop_map(Volumes::Attached),
        1 => Just(Volumes::Lost),
    ];
    let gang = option::weighted(0.1, option::of(1u32..5));
    let rest = (gang, select(&[0, 10][..]), option::weighted(0.03, Just(())));
    (a_pod(), a_name(), 1usize..7, pod_constraints(), volumes, rest).prop_map(
        |(
            mut pod,
            (namespace, labels),
            replicas,
            constraints,
            volumes,
            (gang, priority, claims),
        )| {
            pod.key = ObjectKey::new(namespace, "");
            pod.labels = labels;
            constraints.apply_to(&mut pod);
            pod.gang = gang.map(|least| Gang { name: String::new(), least });
            pod.priority = priority;
            pod.has_resource_claims = claims.is_some();
            Deployment { pod, replicas, volumes }
        },
    )
}

/// Many small pods that are spread over hosts, mostly among each other only.
pub(crate) fn a_crowded_deployment() -> impl Strategy<Value = Deployment> {
    let amounts = (select(&[100, 300, 900][..]), 1i64..4);
    let bounds = (1u32..3, prop_oneof![4 => Just(1u32), 1 => 2u32..16]);
    let policies = (option::weighted(0.7, Just(())), option::weighted(0.5, Just(())));
    let zone = option::weighted(0.3, select(&["a", "b"][..]));
    let name = select(&["d", "d", "d", "e", "a"][..]);
    let toleration = option::weighted(0.6, a_toleration());
    (amounts, bounds, policies, zone, name, toleration, 11usize..40).prop_map(
        |((cpu, memory), (skew, least), (affinity, taints), zone, app, toleration, replicas)| {
            let mut pod = pod("", cpu, memory * GIB / 2);
            pod.labels = Labels::from([label("app", app)]);
            pod.node_selector.extend(zone.map(|zone| label(ZONE, zone)));
            pod.tolerations.extend(toleration);
            pod.spread = vec![TopologySpread {
                selector: Some(Selector::from_labels(&pod.labels)),
                topology_key: HOSTNAME.to_owned(),
                max_skew: skew,
                min_domains: least,
                honors_affinity: affinity.is_some(),
                honors_taints: taints.is_some(),
                is_hard: true,
            }];
            Deployment { pod, replicas, volumes: Volumes::None }
        },
    )
}

/// A daemon pod, sometimes with labels that constraints of other pods match.
pub(crate) fn a_daemon() -> impl Strategy<Value = Pod> {
    let social = (option::weighted(0.4, a_name()), sometimes(12, a_term_draft()));
    (a_pod(), social).prop_map(|(mut pod, (name, anti_affinity))| {
        if let Some((namespace, labels)) = name {
            pod.key.namespace = namespace.to_owned();
            pod.labels = labels;
        }
        let term = |draft: &TermDraft| draft.term(&pod.key.namespace, &pod.labels);
        pod.anti_affinity = anti_affinity.iter().map(term).collect();
        pod
    })
}

/// A pod that is already bound or promised to a node.
pub(crate) fn a_settled_pod() -> impl Strategy<Value = Pod> {
    let deleting = option::weighted(0.15, Just(super::fixture::NOW));
    (a_name(), sometimes(35, a_term_draft()), deleting).prop_map(
        |((namespace, labels), anti_affinity, deleting)| {
            let mut pod = pod("", 0, 0);
            let term = |draft: &TermDraft| draft.term(namespace, &labels);
            pod.anti_affinity = anti_affinity.iter().map(term).collect();
            pod.key = ObjectKey::new(namespace, "");
            pod.labels = labels;
            pod.deleting = deleting;
            pod
        },
    )
}
