//! Selects the pods of a claim that may be bound to its node before the node exists.
//!
//! By binding a pod, the engine replaces the scheduler. It leaves to the scheduler each pod that
//! needs other work of the scheduler (volumes, resource claims) or has topology rules against pods
//! that are not bound yet. A bound pod can only be moved by deletion, so a controller must recreate
//! it. Source: docs/decisions/019-early-binding.md.

use std::collections::BTreeMap;

use crate::model::id::ObjectKey;
use crate::model::labels::{HOSTNAME, Labels};
use crate::model::pod::Pod;
use crate::model::requirement::Requirements;
use crate::model::taint::{Taint, first_repelling};
use crate::state::State;
use crate::state::node_capacity::offering_of;
use crate::state::node_claims::NodeClaim;
use crate::state::nominations::DEFAULT_SCHEDULER;
use crate::state::object_cache::labels_of;
use crate::state::volume_topology::volume_requirements_of;

impl State {
    /// Returns the pods of a claim that may be bound once the name of its node is known, by key.
    /// The node will have these labels and taints at registration.
    pub fn bindable_pods<'a>(
        &'a self,
        claim: &'a NodeClaim,
        labels: &Labels,
        taints: &[Taint],
    ) -> Vec<&'a Pod> {
        let catalog = self.catalog_of(&claim.record.pool);
        let instance_type =
            offering_of(claim).and_then(|offering| catalog.get(offering.instance_type.as_str()));
        let Some((node, instance_type)) = claim.expected_node().zip(instance_type) else {
            return Vec::new();
        };
        let name = node.name.as_str();
        let labels = labels_of(&node.name, labels);
        let mut free = instance_type.allocatable.clone();
        free.subtract(&self.objects.node_usage(name).requests());
        let mut pods_on_node: Vec<&Pod> = self.objects.pods_on(name).collect();
        let mut chosen = Vec::new();
        for pod in self.pods_of(claim) {
            let fits = self.needs_only_room(pod)
                && self.reaches_volumes(pod, &labels)
                && pod.requests.fit_into(&free)
                && selects_node(pod, &labels)
                && first_repelling(taints, &pod.tolerations).is_none()
                && is_within_skew(pod, &pods_on_node);
            if fits {
                free.subtract(&pod.requests);
                chosen.push(pod);
                pods_on_node.push(pod);
            }
        }
        chosen
    }

    /// Returns whether the volumes of a pod can be used on a node with these labels. The volumes
    /// may have been provisioned elsewhere after planning.
    fn reaches_volumes(&self, pod: &Pod, labels: &Requirements) -> bool {
        let mounts = volume_requirements_of(&self.objects, pod, &BTreeMap::new());
        mounts.fault.is_none() && meets_any(labels, &mounts.alternatives)
    }

    /// Returns whether a pod needs nothing from the scheduler except a node, and has a controller
    /// that recreates it.
    fn needs_only_room(&self, pod: &Pod) -> bool {
        let is_own = matches!(pod.scheduler.as_str(), "" | DEFAULT_SCHEDULER);
        // Before a device plugin has registered, the kubelet rejects pods that request the device.
        let devices = pod.requests.extended.values().any(|amount| *amount > 0);
        let by_default = &self.cluster.scheduling.default_spread;
        let spread = pod.spread.iter().filter(|spread| spread.is_hard);

        pod.owner.is_some()
            && !pod.may_be_protected()
            && pod.defects.is_empty()
            && !pod.is_gated
            && !pod.has_resource_claims
            && pod.gang.is_none()
            && pod.nominated_node.is_none()
            && is_own
            && !devices
            && pod.volume_claims.iter().all(|name| {
                let key = ObjectKey::new(&pod.key.namespace, name);
                let claim = self.objects.volume_claims.get(&key);
                claim.is_some_and(|claim| claim.is_bound && !claim.once_pod && !claim.deleting)
            })
            && pod.affinity.is_empty()
            && pod.anti_affinity.iter().all(|anti_affinity| anti_affinity.topology_key == HOSTNAME)
            && spread.clone().all(|spread| spread.topology_key == HOSTNAME)
            && (!pod.spread.is_empty() || by_default.iter().all(|spread| !spread.is_hard))
    }
}

/// Returns whether these labels satisfy one of the alternatives. True if there are no alternatives.
fn meets_any(labels: &Requirements, alternatives: &[Requirements]) -> bool {
    alternatives.is_empty()
        || alternatives
            .iter()
            .any(|alternative| labels.check_compatible(alternative, false).is_ok())
}

/// Returns whether a node with these labels satisfies the node selector and affinity of a pod. The
/// kubelet rejects pods for which this is not the case.
fn selects_node(pod: &Pod, labels: &Requirements) -> bool {
    let selected = Requirements::from_labels(&pod.node_selector);
    labels.check_compatible(&selected, false).is_ok() && meets_any(labels, &pod.node_affinity)
}

/// Returns whether a node with these pods may take a further spread pod, regardless of the pods on
/// other nodes: it has fewer similar pods than the skew allows.
fn is_within_skew(pod: &Pod, pods_on_node: &[&Pod]) -> bool {
    pod.spread.iter().filter(|spread| spread.is_hard).all(|spread| {
        let count = pods_on_node
            .iter()
            .filter(|other| {
                let selector = spread.selector.as_ref();
                other.key.namespace == pod.key.namespace
                    && selector.is_some_and(|selector| selector.matches(&other.labels))
            })
            .count();
        u32::try_from(count).is_ok_and(|count| count < spread.max_skew)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::catalog::Catalog;
    use crate::model::affinity::{Gang, PodTerm, TopologySpread};
    use crate::model::claim::ClaimPhase;
    use crate::model::instance::ExpectedNode;
    use crate::model::labels::{DO_NOT_DISRUPT, HOSTNAME, Labels, ZONE};
    use crate::model::pod::{Owner, Pod};
    use crate::model::requirement::Requirements;
    use crate::model::selector::Selector;
    use crate::model::taint::{Effect, Taint};
    use crate::model::watched_object::{Volume, VolumeClaim, WatchedObject};
    use crate::state::State;
    use crate::state::fixtures::{NOW, claim, waiting};

    fn owned(name: &str) -> Pod {
        let mut pod = waiting("default", name);
        pod.labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        pod.owner =
            Some(Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "web".into() });
        pod
    }

    fn term(key: &str) -> PodTerm {
        PodTerm { topology_key: key.to_owned(), ..PodTerm::default() }
    }

    fn spread(key: &str, is_hard: bool) -> TopologySpread {
        let labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        TopologySpread {
            selector: Some(Selector::from_labels(&labels)),
            topology_key: key.to_owned(),
            max_skew: 1,
            min_domains: 1,
            honors_affinity: true,
            honors_taints: false,
            is_hard,
        }
    }

    /// Which of these pods may be bound to the node of a claim that was planned for all of them.
    fn bindable(pods: &[Pod], taints: &[Taint]) -> String {
        let mut node_claim = claim("c", Some("n"), ClaimPhase::Launched);
        node_claim.node = None;
        let catalog = Arc::new(Catalog::shipped());
        let shape = catalog.get("m5.large").expect("it ships");
        let instance = node_claim.instance.as_mut().expect("an instance");
        instance.offering.instance_type = shape.name.clone();
        let node = ExpectedNode::of_ec2("n", &"zone".into(), &"i-n".into());
        instance.node = Some(Box::new(node));
        node_claim.pods = pods.iter().map(|pod| pod.key.clone()).collect();
        let mut state = State { catalog, ..State::default() };
        for (name, is_bound) in [("bound", true), ("elsewhere", true), ("unbound", false)] {
            let claim = VolumeClaim {
                key: crate::model::id::ObjectKey::new("default", name),
                volume: name.to_owned(),
                is_bound,
                ..VolumeClaim::default()
            };
            state.objects.apply(WatchedObject::VolumeClaim(claim), NOW);
            let team = if name == "elsewhere" { "b" } else { "a" };
            let required = Labels::from([("team".to_owned(), team.to_owned())]);
            let volume = Volume {
                name: name.to_owned(),
                node_affinity: vec![Requirements::from_labels(&required)],
                ..Volume::default()
            };
            state.objects.apply(WatchedObject::Volume(volume), NOW);
        }
        for pod in pods {
            state.objects.apply(pod.clone().into(), NOW);
        }
        let labels = Labels::from([("team".to_owned(), "a".to_owned())]);
        let all = state.bindable_pods(&node_claim, &labels, taints);
        let names: Vec<&str> = all.iter().map(|pod| pod.key.name.as_str()).collect();
        names.join(" ")
    }

    /// A change of a pod, and whether the pod may then be bound early.
    type Case = (&'static str, fn(&mut Pod), bool);

    #[test]
    fn pods_that_need_more_than_resources_are_not_bound_early() {
        let cases: [Case; 22] = [
            ("plain", |_| {}, true),
            (
                "selects a label of the node",
                |pod| drop(pod.node_selector.insert("team".into(), "a".into())),
                true,
            ),
            (
                "selects a label that the node lacks",
                |pod| drop(pod.node_selector.insert("team".into(), "b".into())),
                false,
            ),
            ("too large", |pod| pod.requests.cpu_milli = 2000, false),
            ("without a controller", |pod| pod.owner = None, false),
            (
                "do-not-disrupt",
                |pod| drop(pod.annotations.insert(DO_NOT_DISRUPT.into(), "true".into())),
                false,
            ),
            ("gated", |pod| pod.is_gated = true, false),
            ("resource claims", |pod| pod.has_resource_claims = true, false),
            ("a different scheduler", |pod| pod.scheduler = "volcano".into(), false),
            (
                "the default scheduler by name",
                |pod| pod.scheduler = "default-scheduler".into(),
                true,
            ),
            ("bound already", |pod| pod.node = Some("m".into()), false),
            ("nominated", |pod| pod.nominated_node = Some("m".into()), false),
            ("a bound volume", |pod| pod.volume_claims = vec!["bound".into()], true),
            (
                "a bound volume for other nodes",
                |pod| pod.volume_claims = vec!["elsewhere".into()],
                false,
            ),
            ("an unbound volume", |pod| pod.volume_claims = vec!["unbound".into()], false),
            ("an unknown volume", |pod| pod.volume_claims = vec!["none".into()], false),
            (
                "a device",
                |pod| pod.requests.extended = [("nvidia.com/gpu".to_owned(), 1)].into(),
                false,
            ),
            (
                "a gang",
                |pod| {
                    pod.gang = Some(Gang { name: "g".into(), least: None });
                },
                false,
            ),
            ("with pod affinity", |pod| pod.affinity = vec![term(HOSTNAME)], false),
            ("anti-affinity by host name", |pod| pod.anti_affinity = vec![term(HOSTNAME)], true),
            ("anti-affinity by zone", |pod| pod.anti_affinity = vec![term(ZONE)], false),
            ("spread over zones", |pod| pod.spread = vec![spread(ZONE, true)], false),
        ];
        for (what, change, expect) in cases {
            let mut pod = owned("a");
            change(&mut pod);
            assert_eq!(bindable(&[pod], &[]), if expect { "a" } else { "" }, "{what}");
        }
        let soft_spread = |mut pod: Pod| {
            pod.spread = vec![spread(ZONE, false)];
            pod
        };
        assert_eq!(bindable(&[soft_spread(owned("a"))], &[]), "a");
    }

    #[test]
    fn hostname_spread_limits_early_binding_to_the_max_skew() {
        let of = |name: &str| {
            let mut pod = owned(name);
            pod.spread = vec![spread(HOSTNAME, true)];
            pod
        };
        assert_eq!(bindable(&[of("a"), of("b")], &[]), "a");
        let mut bound = of("a");
        bound.node = Some("n".into());
        assert_eq!(bindable(&[bound, of("b")], &[]), "");
    }

    #[test]
    fn startup_taints_prevent_early_binding() {
        let soft = Taint::new("soft", Effect::PreferNoSchedule);
        assert_eq!(bindable(&[owned("a")], &[soft]), "a");
        for effect in [Effect::NoSchedule, Effect::NoExecute] {
            let taint = Taint::new("example.com/agent", effect);
            assert_eq!(bindable(&[owned("a")], &[taint]), "", "{effect:?}");
        }
    }
}
