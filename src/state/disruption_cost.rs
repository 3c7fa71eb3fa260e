//! What the pods of one node have at stake in it, kept up pod by pod: what it is used for, what
//! moving them costs, and whether any of them has something to say about it.
//! It must not know whether the node leaves, nor what time it is.

use crate::model::pod::Pod;
use crate::model::quantity::Resources;

/// What pods that have not ended have at stake in their node.
///
/// Sums are wider than amounts, so that what one pod added can be taken away again however large it
/// was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DisruptionCost {
    /// Pods because of which the node is of use.
    holding: usize,
    /// What moving pods costs, in the units of pods' costs; those that cost nothing add nothing.
    cost: i64,
    /// What pods ask for that are neither daemons nor mirrors.
    cpu_milli: i128,
    memory: i128,
    /// Pods that may forbid that they are moved.
    guarded: usize,
    /// Pods that Cluster Autoscaler would not move.
    risky: usize,
    /// Pods that say something that cannot be understood.
    odd: usize,
}

/// What is at stake where there are no pods.
static NOTHING: DisruptionCost = DisruptionCost {
    holding: 0,
    cost: 0,
    cpu_milli: 0,
    memory: 0,
    guarded: 0,
    risky: 0,
    odd: 0,
};

impl DisruptionCost {
    /// What is at stake in a node without pods.
    pub(super) fn nothing() -> &'static Self {
        &NOTHING
    }

    /// Counts a pod in.
    pub(super) fn add(&mut self, pod: &Pod) {
        self.change(pod, true);
    }

    /// Counts a pod out that was counted in, as it was then.
    pub(super) fn remove(&mut self, pod: &Pod) {
        self.change(pod, false);
    }

    fn change(&mut self, pod: &Pod, comes: bool) {
        if pod.is_terminal() {
            return;
        }
        let count = |own: &mut usize, counts: bool| {
            let step = usize::from(counts);
            *own = if comes {
                *own + step
            } else {
                own.saturating_sub(step)
            };
        };
        count(&mut self.holding, pod.holds_node());
        count(
            &mut self.guarded,
            pod.may_be_protected() || pod.is_unsafe_to_evict(),
        );
        count(&mut self.risky, pod.risk().is_some());
        count(&mut self.odd, pod.misreads().next().is_some());
        let sign = if comes { 1 } else { -1 };
        if pod.holds_node() {
            self.cost += sign * pod.eviction_cost();
        }
        if pod.occupies_node() {
            self.cpu_milli += i128::from(sign) * i128::from(pod.requests.cpu_milli);
            self.memory += i128::from(sign) * i128::from(pod.requests.memory);
        }
    }

    /// How many pods there are because of which the node is of use.
    pub(super) fn holding(&self) -> usize {
        self.holding
    }

    /// What moving all pods costs, in the units of pods' costs.
    pub(super) fn cost(&self) -> i64 {
        self.cost
    }

    /// Whether a pod may forbid that it is moved.
    pub(super) fn is_guarded(&self) -> bool {
        self.guarded > 0
    }

    /// Whether there is a pod that Cluster Autoscaler would not move.
    pub(super) fn is_risky(&self) -> bool {
        self.risky > 0
    }

    /// Whether a pod says something that cannot be understood.
    pub(super) fn is_odd(&self) -> bool {
        self.odd > 0
    }

    /// How much of this the pods ask for that are neither daemons nor mirrors, in per cent rounded
    /// down, of cpu or of memory, whichever is more; none where there is nothing of either.
    pub(super) fn utilization(&self, allocatable: &Resources) -> Option<u32> {
        let share = |used: i128, there: i64| {
            let there = Some(i128::from(there)).filter(|own| *own > 0)?;
            let share = used.max(0).saturating_mul(100) / there;
            Some(u32::try_from(share).unwrap_or(u32::MAX))
        };
        let cpu = share(self.cpu_milli, allocatable.cpu_milli);
        cpu.max(share(self.memory, allocatable.memory))
    }
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
        pod.owner = Some(Owner {
            kind: kind.into(),
            name: "owner".into(),
            uid: "owner".into(),
        });
        pod
    }

    #[test]
    fn what_is_counted_in_can_be_counted_out_again() {
        let guarded = |mut pod: Pod, key: &str, value: &str| {
            pod.annotations.insert(key.to_owned(), value.to_owned());
            pod
        };
        let mut ending = owned("e", "ReplicaSet");
        ending.deleting = Some(NOW);
        let mut cheap = owned("c", "ReplicaSet");
        cheap.priority = -(1 << 25);
        // The pod; whether it holds the node, is guarded, feared for, odd; what it is using.
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
            (
                guarded(owned("s", "Job"), SAFE_TO_EVICT, "false"),
                [true, true, false, false],
                100,
            ),
            (
                guarded(owned("o", "Job"), DO_NOT_DISRUPT, "soon"),
                [true, false, false, true],
                100,
            ),
        ];
        let mut all = DisruptionCost::default();
        let nothing = all.clone();
        for (pod, [holds, guarded, risky, odd], cpu_milli) in &cases {
            let mut own = DisruptionCost::default();
            own.add(pod);
            let cost = if *holds { COST_OF_ONE } else { 0 };
            assert_eq!((own.holding(), own.cost()), (usize::from(*holds), cost));
            let said = [own.is_guarded(), own.is_risky(), own.is_odd()];
            assert_eq!(said, [*guarded, *risky, *odd], "{}", pod.key);
            assert_eq!(own.cpu_milli, *cpu_milli, "{}", pod.key);
            all.add(pod);
        }
        assert_eq!((all.holding(), all.cost()), (4, 4 * COST_OF_ONE));
        for (pod, ..) in &cases {
            all.remove(pod);
        }
        assert_eq!(all, nothing);
    }

    #[test]
    fn a_node_is_used_as_much_as_what_it_has_least_of() {
        let allocatable = |cpu_milli, memory| Resources {
            cpu_milli,
            memory,
            ..Resources::default()
        };
        let mut stake = DisruptionCost::default();
        stake.add(&owned("a", "ReplicaSet"));
        let cases = [
            (allocatable(1000, 1000), Some(20)),
            (allocatable(150, 1000), Some(66)),
            (allocatable(0, 1000), Some(20)),
            (allocatable(1000, 0), Some(10)),
            (allocatable(0, 0), None),
            (allocatable(-5, 1), Some(20_000)),
        ];
        for (allocatable, expect) in cases {
            assert_eq!(stake.utilization(&allocatable), expect, "{allocatable:?}");
        }
        assert_eq!(
            DisruptionCost::nothing().utilization(&allocatable(1, 1)),
            Some(0)
        );
    }
}
