//! Buffers: capacity that is reserved for future pods by virtual pods.
//!
//! Source: spec/scheduling.md §3.5.

use jiff::Timestamp;

use crate::model::id::{PodKey, PoolName};
use crate::model::labels::{Labels, POOL};
use crate::model::named_enum::named_enum;
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::model::taint::Toleration;
use crate::model::window::Window;

/// Namespace of virtual pods. No Kubernetes namespace contains a tilde, and every Kubernetes
/// namespace sorts before this one.
const NAMESPACE: &str = "~buffer";

/// Maximum number of virtual pods in one buffer.
pub const PODS_MAX: u32 = 10_000;

named_enum! {
    /// The workload kinds that a buffer can refer to. The names are those of Kubernetes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ScalableKind {
        /// A Deployment.
        Deployment => "Deployment",
        /// A StatefulSet.
        StatefulSet => "StatefulSet",
        /// A ReplicaSet.
        ReplicaSet => "ReplicaSet",
    }
}

/// A workload that a buffer refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalable {
    /// Its kind.
    pub kind: ScalableKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Scalable {
    /// Returns whether a pod belongs to the workload and is active.
    pub fn owns_pod(&self, pod: &Pod) -> bool {
        let Some(owner) = &pod.owner else {
            return false;
        };
        let owned = match self.kind {
            ScalableKind::StatefulSet => owner.kind == "StatefulSet" && owner.name == self.name,
            ScalableKind::ReplicaSet => owner.kind == "ReplicaSet" && owner.name == self.name,
            // A Deployment names its ReplicaSets after the hash in the label of their pods.
            ScalableKind::Deployment => {
                let hash = pod.labels.get("pod-template-hash");
                owner.kind == "ReplicaSet"
                    && hash.is_some_and(|hash| owner.name == format!("{}-{hash}", self.name))
            }
        };
        owned && pod.key.namespace == self.namespace && pod.deleting.is_none() && !pod.is_terminal()
    }
}

/// The pods that a buffer reserves capacity for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BufferPod {
    /// Resource requests of each pod, including `pods: 1`.
    pub requests: Resources,
    /// Labels that their nodes must have.
    pub node_selector: Labels,
    /// Required node affinity. The terms are alternatives. An empty list means no node affinity.
    pub node_affinity: Vec<Requirements>,
    /// Tolerations of the pods.
    pub tolerations: Vec<Toleration>,
}

/// A buffer of reserved capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Name.
    pub name: String,
    /// The pool whose nodes hold the buffer. `None` means any pool.
    pub pool: Option<PoolName>,
    /// Number of pods.
    pub replicas: Option<u32>,
    /// Number of pods as a percentage of the workload's pods.
    pub percentage: Option<u32>,
    /// The workload.
    pub scalable: Option<Scalable>,
    /// Maximum total requests of the virtual pods, by resource; `cpu` in thousandths.
    pub limits: Vec<(String, i64)>,
    /// Pod specification. `None` means the newest pod of the workload.
    pub pod: Option<BufferPod>,
    /// When the capacity is reserved. `None` means always.
    pub during: Option<Window>,
}

impl Buffer {
    /// Returns the virtual pods at this moment, given all pods of the cluster in any order. The key
    /// of each virtual pod is stable and sorts after the key of every real pod. No pod has a lower
    /// priority than a virtual pod. Pod affinity, spread and volumes are left out: a buffer
    /// reserves capacity and does not copy a workload.
    ///
    /// Returns `None` if the pod specification is unknown because the workload has no pod.
    pub fn virtual_pods<'a>(
        &self,
        pods: impl IntoIterator<Item = &'a Pod>,
        now: Timestamp,
    ) -> Option<Vec<Pod>> {
        if !self.is_open(now) {
            return Some(Vec::new());
        }
        let scalable = self.scalable.as_ref();
        let owned: Vec<&Pod> = pods
            .into_iter()
            .filter(|pod| scalable.is_some_and(|scalable| scalable.owns_pod(pod)))
            .collect();
        let scale = u32::try_from(owned.len()).unwrap_or(u32::MAX);
        let newest = owned.iter().max_by_key(|pod| (pod.created, &pod.key));
        let pattern = self.pod_template(newest.copied())?;
        let count = self.replica_count(scale, &pattern.requests);
        Some(
            (0..count)
                .map(|index| {
                    let name = format!("{}-{index:05}", self.name);
                    Pod {
                        uid: format!("{NAMESPACE}/{name}"),
                        key: PodKey::new(NAMESPACE, name),
                        ..pattern.clone()
                    }
                })
                .collect(),
        )
    }

    /// Returns whether the buffer reserves capacity at this moment.
    pub fn is_open(&self, now: Timestamp) -> bool {
        let window = self.during.as_ref();
        window.is_none_or(|window| window.is_open_at(now))
    }

    /// When the result of [`Self::is_open`] may next change.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        self.during.as_ref()?.next_change(now)
    }

    /// A virtual pod without a name.
    fn pod_template(&self, newest: Option<&Pod>) -> Option<Pod> {
        let mut pod = match (&self.pod, newest) {
            (Some(spec), _) => Pod {
                requests: spec.requests.clone(),
                node_selector: spec.node_selector.clone(),
                node_affinity: spec.node_affinity.clone(),
                tolerations: spec.tolerations.clone(),
                ..Pod::default()
            },
            (None, Some(newest)) => Pod {
                requests: newest.requests.clone(),
                node_selector: newest.node_selector.clone(),
                node_affinity: newest.node_affinity.clone(),
                preferred_nodes: newest.preferred_nodes.clone(),
                tolerations: newest.tolerations.clone(),
                host_ports: newest.host_ports.clone(),
                scheduler: newest.scheduler.clone(),
                ..Pod::default()
            },
            (None, None) => return None,
        };
        if let Some(pool) = &self.pool {
            pod.node_selector.insert(POOL.to_owned(), pool.to_string());
        }
        pod.unschedulable = true;
        pod.priority = i32::MIN;
        Some(pod)
    }

    /// Returns the number of virtual pods with these requests, for a workload of `scale` pods: the
    /// greater of `replicas` and the percentage, capped by the limits. If only limits are set, the
    /// limits determine the number. A resource that no pod requests is not limited.
    ///
    /// A percentage of zero pods is zero, even if limits are set. Karpenter uses the limits in this
    /// case, so that a workload scaled to zero costs the most.
    fn replica_count(&self, scale: u32, requests: &Resources) -> u32 {
        let share = self.percentage.map(|percentage| {
            let pods = u64::from(scale) * u64::from(percentage);
            u32::try_from(pods.div_ceil(100)).unwrap_or(u32::MAX)
        });
        let limited_counts = self.limits.iter().filter_map(|(name, limit)| {
            let request = requests.get(name);
            let count = (request > 0).then(|| (*limit).max(0) / request)?;
            Some(u32::try_from(count).unwrap_or(u32::MAX))
        });
        let limit = limited_counts.min();
        let count = self.replicas.max(share).or(limit).unwrap_or(0);
        count.min(limit.unwrap_or(u32::MAX)).min(PODS_MAX)
    }
}

/// Returns the buffer of the virtual pod with this key. `None` if the pod is a real one.
pub fn buffer_of(key: &PodKey) -> Option<&str> {
    let name = (key.namespace == NAMESPACE).then(|| key.name.rsplit_once('-'));
    name.flatten().map(|(buffer, _)| buffer)
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::{Buffer, BufferPod, PODS_MAX, Scalable, ScalableKind, buffer_of};
    use crate::model::id::{PodKey, PoolName};
    use crate::model::labels::{Labels, POOL};
    use crate::model::pod::{Owner, Pod, PodPhase};
    use crate::model::quantity::Resources;
    use crate::model::window::Window;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn requests(cpu_milli: i64, memory: i64) -> Resources {
        Resources { cpu_milli, memory, pods: 1, ..Resources::default() }
    }

    /// Each row has replicas, percentage, scale, limits and the expected result, for pods that
    /// request 2 cores and 4 bytes.
    #[test]
    fn replicas_are_the_larger_of_count_and_percentage_within_limits() {
        type Row = (Option<u32>, Option<u32>, u32, &'static [(&'static str, i64)], u32);
        let rows: [Row; 22] = [
            (None, None, 9, &[], 0),
            (Some(0), None, 0, &[], 0),
            (Some(4), None, 0, &[], 4),
            (None, Some(20), 10, &[], 2),
            // The percentage is rounded up, so the result is at least one.
            (None, Some(25), 10, &[], 3),
            (None, Some(1), 1, &[], 1),
            (None, Some(0), 10, &[], 0),
            (None, Some(250), 2, &[], 5),
            (None, Some(50), 0, &[], 0),
            (Some(3), Some(50), 0, &[], 3),
            (Some(3), Some(50), 10, &[], 5),
            (Some(7), Some(50), 10, &[], 7),
            (Some(4), None, 0, &[("cpu", 7999)], 3),
            (Some(4), None, 0, &[("cpu", 8000), ("memory", 4)], 1),
            (Some(4), None, 0, &[("cpu", 1999)], 0),
            (Some(4), None, 0, &[("pods", 2)], 2),
            // A resource that no pod requests is not limited.
            (Some(4), None, 0, &[("nvidia.com/gpu", 0)], 4),
            (None, None, 0, &[("cpu", 9000), ("memory", 40)], 4),
            (None, None, 0, &[("nvidia.com/gpu", 8)], 0),
            (None, Some(50), 0, &[("cpu", 9000)], 0),
            (Some(u32::MAX), Some(u32::MAX), u32::MAX, &[], PODS_MAX),
            (None, None, 0, &[("cpu", i64::MAX)], PODS_MAX),
        ];
        for (count, percentage, scale, limits, expect) in rows {
            let limits = limits.iter().map(|(name, max)| ((*name).to_owned(), *max));
            let buffer = Buffer {
                replicas: count,
                percentage,
                limits: limits.collect(),
                ..Buffer::default()
            };
            let count = buffer.replica_count(scale, &requests(2000, 4));
            assert_eq!(count, expect, "{buffer:?} of {scale}");
        }
    }

    fn headroom() -> Buffer {
        Buffer {
            name: "head-room".to_owned(),
            pool: Some(PoolName::from("general")),
            replicas: Some(2),
            pod: Some(BufferPod { requests: requests(500, 1), ..BufferPod::default() }),
            ..Buffer::default()
        }
    }

    #[test]
    fn virtual_pods_sort_last_and_are_identifiable() {
        let pods = headroom().virtual_pods([], NOW).expect("known");
        assert_eq!(pods.len(), 2);
        assert_eq!(Some(&pods), headroom().virtual_pods([], NOW).as_ref());
        assert_ne!(pods[0].uid, pods[1].uid);
        for pod in &pods {
            assert!(pod.is_provisionable());
            assert_eq!(pod.priority, i32::MIN);
            assert_eq!(pod.node_selector[POOL], "general");
            assert_eq!(pod.requests, requests(500, 1));
            assert_eq!(buffer_of(&pod.key), Some("head-room"));
            // Kubernetes names start with a letter or digit.
            for namespace in ["a", "default", "kube-system", "zzz", "0"] {
                let real = PodKey::new(namespace, "zzz-0");
                assert!(real < pod.key, "{real} {}", pod.key);
                assert_eq!(buffer_of(&real), None);
            }
        }
    }

    fn pod(name: &str, kind: &str, owner: &str, created: i64) -> Pod {
        Pod {
            key: PodKey::new("shop", name),
            created: Timestamp::from_second(created).ok(),
            labels: Labels::from([("pod-template-hash".to_owned(), "7d4".to_owned())]),
            owner: Some(Owner {
                kind: kind.to_owned(),
                name: owner.to_owned(),
                uid: "1".to_owned(),
            }),
            requests: requests(created * 100, 1),
            ..Pod::default()
        }
    }

    #[test]
    fn workload_owns_only_its_live_controlled_pods() {
        let ended = Pod { phase: PodPhase::Succeeded, ..pod("w-4", "ReplicaSet", "web-7d4", 1) };
        let deleting = Pod { deleting: Some(NOW), ..pod("w-5", "ReplicaSet", "web-7d4", 1) };
        let elsewhere =
            Pod { key: PodKey::new("test", "w-1"), ..pod("w-1", "ReplicaSet", "web-7d4", 1) };
        let alone = Pod { owner: None, ..pod("w-6", "", "", 1) };
        let rows = [
            (pod("w-1", "ReplicaSet", "web-7d4", 1), [true, false, false]),
            (pod("w-2", "ReplicaSet", "web-canary-7d4", 1), [false; 3]),
            (pod("w-3", "StatefulSet", "web", 1), [false, true, false]),
            (pod("w-7", "ReplicaSet", "web", 1), [false, false, true]),
            (pod("w-8", "DaemonSet", "web", 1), [false; 3]),
            (ended, [false; 3]),
            (deleting, [false; 3]),
            (elsewhere, [false; 3]),
            (alone, [false; 3]),
        ];
        for (pod, expect) in rows {
            let has = ScalableKind::NAMES.map(|kind| {
                let scalable = Scalable {
                    kind: ScalableKind::parse(kind).expect("a kind"),
                    namespace: "shop".to_owned(),
                    name: "web".to_owned(),
                };
                scalable.owns_pod(&pod)
            });
            assert_eq!(has, expect, "{}", pod.key);
        }
    }

    #[test]
    fn buffer_without_a_pod_template_copies_the_newest_workload_pod() {
        let buffer = Buffer {
            replicas: None,
            percentage: Some(50),
            scalable: Some(Scalable {
                kind: ScalableKind::StatefulSet,
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
            }),
            pod: None,
            ..headroom()
        };
        let three = [
            pod("web-0", "StatefulSet", "web", 5),
            pod("web-2", "StatefulSet", "web", 9),
            pod("web-1", "StatefulSet", "web", 7),
        ];
        let pods = buffer.virtual_pods(&three, NOW).expect("known");
        assert_eq!(pods.len(), 2);
        assert_eq!(pods[0].requests, three[1].requests);
        assert_eq!(pods[0].owner, None);
        assert_eq!(Some(pods), buffer.virtual_pods(three.iter().rev(), NOW));
        assert_eq!(buffer.virtual_pods([], NOW), None);
    }

    #[test]
    fn buffer_has_pods_only_during_its_window() {
        let hour = SignedDuration::from_hours(1);
        let buffer = Buffer { during: Window::new("0 8 * * *", hour, "UTC").ok(), ..headroom() };
        for (at, count) in [("1970-01-01T08:30:00Z", 2), ("1970-01-01T09:00:00Z", 0)] {
            let at: Timestamp = at.parse().expect("a timestamp");
            let pods = buffer.virtual_pods([], at).map(|pods| pods.len());
            assert_eq!(pods, Some(count), "{at}");
        }
    }
}
