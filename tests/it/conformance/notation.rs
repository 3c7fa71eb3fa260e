//! Short notation for the parts of cases: requirements, pods and their constraints.

use std::collections::BTreeSet;

use outrigger::model::affinity::{PodTerm, Preferred, TopologySpread};
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::{
    ARCH, CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, OS, POOL, REGION, RESERVATION_ID,
    RESERVATION_TYPE, ZONE,
};
use outrigger::model::pod::{Owner, Pod};
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Operator, Requirement, Requirements};
use outrigger::model::selector::Selector;
use outrigger::model::taint::{Effect, Taint, Toleration, TolerationOperator};

use super::fixture::GIB;

/// The full name of a label for the short name that cases use.
pub(super) fn key_of(short: &str) -> &str {
    match short {
        "zone" => ZONE,
        "region" => REGION,
        "type" => INSTANCE_TYPE,
        "arch" => ARCH,
        "os" => OS,
        "bought" => CAPACITY_TYPE,
        "pool" => POOL,
        "host" => HOSTNAME,
        "reservation" => RESERVATION_ID,
        "reserved-as" => RESERVATION_TYPE,
        // Labels of the provider: one of all types, a numeric one, and one of few types.
        "size" => "karpenter.k8s.aws/instance-size",
        "integer" => "karpenter.k8s.aws/instance-cpu",
        "special" => "karpenter.k8s.aws/instance-local-nvme",
        other => other,
    }
}

/// Reads `zone in z1 z2`, `zone not z3`, `team exists`, `team absent`, `integer > 4`.
pub(super) fn read(text: &str) -> (&str, Requirement) {
    let mut words = text.split(' ');
    let (key, operator) = (words.next(), words.next());
    let values: Vec<String> = words.map(str::to_owned).collect();
    let operator = match operator.expect("an operator") {
        "in" => Operator::In,
        "not" => Operator::NotIn,
        "exists" => Operator::Exists,
        "absent" => Operator::DoesNotExist,
        ">" => Operator::Gt,
        ">=" => Operator::Gte,
        "<" => Operator::Lt,
        "<=" => Operator::Lte,
        other => panic!("{other:?} of {text:?}"),
    };
    let requirement = Requirement::from_operator(operator, &values).expect("values that fit");
    (key_of(key.expect("a label")), requirement)
}

/// Reads a requirement, and sets its `min_values`.
pub(super) fn at_least(least: u32, text: &str) -> (&str, Requirement) {
    let (key, mut requirement) = read(text);
    requirement.min_values = Some(least);
    (key, requirement)
}

/// Several requirements that must all hold.
pub(super) fn all(texts: &[&str]) -> Requirements {
    texts.iter().map(|text| read(text)).collect()
}

/// A selector of pods: `app=a`, or `app in a b`. The empty text selects all pods.
pub(super) fn selecting(text: &str) -> Selector {
    let parts = text.split(", ").filter(|part| !part.is_empty());
    let one = |part: &str| match part.split_once('=') {
        Some((key, value)) => (key.to_owned(), Requirement::is_in([value])),
        None => {
            let (key, requirement) = read(part);
            (key.to_owned(), requirement)
        }
    };
    Selector::new(parts.map(one))
}

/// A term for pods of the namespace `default` with these labels and the topology key `key`.
pub(super) fn term(key: &str, selector: &str) -> PodTerm {
    PodTerm {
        selector: Some(selecting(selector)),
        namespaces: BTreeSet::from(["default".to_owned()]),
        namespace_selector: None,
        topology_key: key_of(key).to_owned(),
    }
}

/// A hard constraint with Kubernetes' defaults.
pub(super) fn spread(key: &str, max_skew: u32, selector: &str) -> TopologySpread {
    TopologySpread {
        selector: Some(selecting(selector)),
        topology_key: key_of(key).to_owned(),
        max_skew,
        min_domains: 1,
        honors_affinity: true,
        honors_taints: false,
        is_hard: true,
    }
}

/// The same constraint as a preference (`ScheduleAnyway`).
pub(super) fn soft(constraint: TopologySpread) -> TopologySpread {
    TopologySpread { is_hard: false, ..constraint }
}

pub(super) fn taint(key: &str, value: &str, effect: Effect) -> Taint {
    Taint { value: value.to_owned(), ..Taint::new(key, effect) }
}

/// A toleration of a key with any value, for any effect.
pub(super) fn tolerates(key: &str) -> Toleration {
    Toleration {
        key: key.to_owned(),
        operator: TolerationOperator::Exists,
        value: String::new(),
        effect: None,
    }
}

/// A pod in the namespace `default` without requests.
pub(super) fn pod(name: &str) -> Pod {
    Pod {
        key: ObjectKey::new("default", name),
        requests: Resources { pods: 1, ..Resources::default() },
        ..Pod::default()
    }
}

/// Identical pods, named by a prefix and two digits.
pub(super) fn pods(count: usize, like: &Pod) -> Vec<Pod> {
    let name = |at| format!("{}{at:02}", like.key.name);
    let one =
        |at| Pod { key: ObjectKey::new(like.key.namespace.as_str(), name(at)), ..like.clone() };
    (0..count).map(one).collect()
}

/// Builder methods for the properties of a pod.
pub(super) trait With: Sized {
    fn with(self, change: impl FnOnce(&mut Pod)) -> Self;

    fn cpu(self, milli: i64) -> Self {
        self.with(|pod| pod.requests.cpu_milli = milli)
    }

    fn gib(self, gib: i64) -> Self {
        self.with(|pod| pod.requests.memory = gib * GIB)
    }

    fn asks(self, resource: &str, amount: i64) -> Self {
        self.with(|pod| {
            pod.requests.extended.insert(resource.to_owned(), amount);
        })
    }

    /// `app=a`.
    fn label(self, text: &str) -> Self {
        let (key, value) = text.split_once('=').expect("app=a");
        self.with(|pod| {
            pod.labels.insert(key.to_owned(), value.to_owned());
        })
    }

    fn select(self, key: &str, value: &str) -> Self {
        let key = key_of(key).to_owned();
        self.with(|pod| {
            pod.node_selector.insert(key, value.to_owned());
        })
    }

    /// Adds a term of node affinity, which is an alternative to the existing terms.
    fn need(self, texts: &[&str]) -> Self {
        self.with(|pod| pod.node_affinity.push(all(texts)))
    }

    fn prefer(self, weight: i32, texts: &[&str]) -> Self {
        let term = all(texts);
        self.with(|pod| pod.preferred_nodes.push(Preferred { weight, term }))
    }

    fn tolerate(self, toleration: Toleration) -> Self {
        self.with(|pod| pod.tolerations.push(toleration))
    }

    fn near(self, term: PodTerm) -> Self {
        self.with(|pod| pod.affinity.push(term))
    }

    fn apart(self, term: PodTerm) -> Self {
        self.with(|pod| pod.anti_affinity.push(term))
    }

    fn prefer_near(self, weight: i32, term: PodTerm) -> Self {
        self.with(|pod| pod.preferred_affinity.push(Preferred { weight, term }))
    }

    fn prefer_apart(self, weight: i32, term: PodTerm) -> Self {
        self.with(|pod| pod.preferred_anti_affinity.push(Preferred { weight, term }))
    }

    fn spread(self, constraint: TopologySpread) -> Self {
        self.with(|pod| pod.spread.push(constraint))
    }

    fn port(self, port: u16) -> Self {
        let all = ("TCP".to_owned(), String::new(), port);
        self.with(|pod| {
            pod.host_ports.insert(all);
        })
    }

    fn owner(self, kind: &str, name: &str) -> Self {
        let owner =
            Owner { kind: kind.to_owned(), name: name.to_owned(), uid: format!("uid-{name}") };
        self.with(|pod| pod.owner = Some(owner))
    }

    fn volume(self, claim: &str) -> Self {
        self.with(|pod| pod.volume_claims.push(claim.to_owned()))
    }

    fn namespace(self, namespace: &str) -> Self {
        self.with(|pod| pod.key.namespace = namespace.to_owned())
    }
}

impl With for Pod {
    fn with(mut self, change: impl FnOnce(&mut Pod)) -> Self {
        change(&mut self);
        self
    }
}
