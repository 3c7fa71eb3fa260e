//! Aggregates the pods of one node incrementally: whether the node is in use, its disruption cost,
//! and whether a pod may block disruption.

use crate::model::pod::Pod;
use crate::model::quantity::Resources;

/// Totals over the active pods of a node.
///
/// Sums are wider than single quantities, so that subtracting a pod always reverses adding it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DisruptionCost {
    /// Number of pods that keep the node in use.
    pub(super) holding_pods: usize,
    /// Sum of pod disruption costs; negative costs add nothing.
    pub(super) cost: i64,
    /// Requests of pods except DaemonSet and static pods.
    cpu_milli: i128,
    memory: i128,
    /// Number of pods that may block disruption.
    pub(super) guarded: usize,
    /// Number of pods that Cluster Autoscaler would not move.
    pub(super) risky: usize,
    /// Number of pods with invalid values.
    pub(super) invalid: usize,
}

impl DisruptionCost {
    /// Adds a pod to the totals, or removes it with the same properties with which it was added.
    pub(super) fn count_pod(&mut self, pod: &Pod, comes: bool) {
        if pod.is_terminal() {
            return;
        }
        let guarded = pod.may_be_protected() || pod.is_unsafe_to_evict();
        for (counter, counts) in [
            (&mut self.holding_pods, pod.holds_node()),
            (&mut self.guarded, guarded),
            (&mut self.risky, pod.autoscaler_risk().is_some()),
            (&mut self.invalid, pod.annotation_misreads().next().is_some()),
        ] {
            *counter = match comes {
                true => *counter + usize::from(counts),
                false => counter.saturating_sub(usize::from(counts)),
            };
        }
        let sign = if comes { 1 } else { -1 };
        if pod.holds_node() {
            self.cost += sign * pod.eviction_cost();
        }
        if pod.occupies_node() {
            self.cpu_milli += i128::from(sign) * i128::from(pod.requests.cpu_milli);
            self.memory += i128::from(sign) * i128::from(pod.requests.memory);
        }
    }

    /// Returns the utilization of cpu or memory without DaemonSet and static pods, whichever is
    /// higher, in per cent rounded down. `None` if the node has neither resource.
    pub(super) fn utilization(&self, allocatable: &Resources) -> Option<u32> {
        percent(self.cpu_milli, allocatable.cpu_milli).max(percent(self.memory, allocatable.memory))
    }
}

/// Returns the used percentage of a quantity, rounded down. `None` if the quantity is not positive.
fn percent(used: i128, allocatable: i64) -> Option<u32> {
    let allocatable = Some(i128::from(allocatable)).filter(|quantity| *quantity > 0)?;
    let percent = used.max(0).saturating_mul(100) / allocatable;
    Some(u32::try_from(percent).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::DisruptionCost;
    use crate::model::eviction::COST_OF_ONE;
    use crate::model::labels::{DO_NOT_DISRUPT, SAFE_TO_EVICT};
    use crate::model::pod::{Owner, Pod};
    use crate::model::quantity::Resources;
    use crate::state::fixtures::{NOW, pod};

    fn owned(name: &str, kind: &str) -> Pod {
        let mut pod = pod("default", name, "n");
        pod.requests.memory = 200;
        pod.owner = Some(Owner { kind: kind.into(), name: "owner".into(), uid: "owner".into() });
        pod
    }

    #[test]
    fn removing_all_pods_resets_the_disruption_cost() {
        let guarded = |mut pod: Pod, key: &str, value: &str| {
            pod.annotations.insert(key.to_owned(), value.to_owned());
            pod
        };
        let mut ending = owned("e", "ReplicaSet");
        ending.deleting = Some(NOW);
        let mut cheap = owned("c", "ReplicaSet");
        cheap.priority = -(1 << 25);
        // The pod; whether it justifies the node, is protected, is unsafe, is invalid; its
        // requests.
        let cases = [
            (owned("a", "ReplicaSet"), [true, false, false, false], 100),
            (owned("d", "DaemonSet"), [false; 4], 0),
            (owned("m", "Node"), [false; 4], 0),
            (owned("b", "Other"), [true, false, true, false], 100),
            (ending, [false; 4], 100),
            (cheap, [false; 4], 100),
            (
                guarded(owned("g", "DaemonSet"), DO_NOT_DISRUPT, "true"),
                [false, true, false, false],
                0,
            ),
            (guarded(owned("s", "Job"), SAFE_TO_EVICT, "false"), [true, true, false, false], 100),
            (guarded(owned("o", "Job"), DO_NOT_DISRUPT, "soon"), [true, false, false, true], 100),
        ];
        let mut all = DisruptionCost::default();
        let nothing = all.clone();
        for (pod, [holds, guarded, risky, odd], cpu_milli) in &cases {
            let mut totals = DisruptionCost::default();
            totals.count_pod(pod, true);
            let cost = if *holds { COST_OF_ONE } else { 0 };
            assert_eq!((totals.holding_pods, totals.cost), (usize::from(*holds), cost));
            let flags = [totals.guarded > 0, totals.risky > 0, totals.invalid > 0];
            assert_eq!(flags, [*guarded, *risky, *odd], "{}", pod.key);
            assert_eq!(totals.cpu_milli, *cpu_milli, "{}", pod.key);
            all.count_pod(pod, true);
        }
        assert_eq!((all.holding_pods, all.cost), (4, 4 * COST_OF_ONE));
        for (pod, ..) in &cases {
            all.count_pod(pod, false);
        }
        assert_eq!(all, nothing);
    }

    #[test]
    fn utilization_is_that_of_the_scarcest_resource() {
        let allocatable =
            |cpu_milli, memory| Resources { cpu_milli, memory, ..Resources::default() };
        let mut cost = DisruptionCost::default();
        cost.count_pod(&owned("a", "ReplicaSet"), true);
        let cases = [
            (allocatable(1000, 1000), Some(20)),
            (allocatable(150, 1000), Some(66)),
            (allocatable(0, 1000), Some(20)),
            (allocatable(1000, 0), Some(10)),
            (allocatable(0, 0), None),
            (allocatable(-5, 1), Some(20_000)),
        ];
        for (allocatable, expect) in cases {
            assert_eq!(cost.utilization(&allocatable), expect, "{allocatable:?}");
        }
        assert_eq!(DisruptionCost::default().utilization(&allocatable(1, 1)), Some(0));
    }
}
