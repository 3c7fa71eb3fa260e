//! Filters of kube-scheduler, implemented from the Kubernetes documentation only. They share no
//! code with Outrigger's scheduling, so that neither hides errors of the other.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::model::labels::{Labels, ZONE};
use crate::model::node::Node;
use crate::model::quantity::Resources;
use crate::model::requirement::Operator;
use crate::model::taint::{Effect, Taint, Toleration, TolerationOperator};
use crate::sim::workload::{Want, Workload};

/// Returns true if a node accepts a pod of the workload, with these resources used.
pub fn fits(workload: &Workload, node: &Node, used: &Resources) -> bool {
    // The cheap check comes first.
    has_room(&workload.requests, &node.allocatable, used) && fits_when_empty(workload, node)
}

/// Returns true if a node would accept a pod of the workload if it were empty.
pub fn fits_when_empty(workload: &Workload, node: &Node) -> bool {
    let tolerates = |taint: &Taint| tolerates_taint(&workload.tolerations, taint);
    let cordon = || Taint::new("node.kubernetes.io/unschedulable", Effect::NoSchedule);
    let mut taints = node.taints.iter();
    (!node.unschedulable || tolerates(&cordon()))
        && taints.all(|taint| taint.effect == Effect::PreferNoSchedule || tolerates(taint))
        && labels_match(workload, &node.labels)
}

/// Number of `PreferNoSchedule` taints that a pod of the workload does not tolerate.
pub fn untolerated_preferences(workload: &Workload, node: &Node) -> usize {
    node.taints
        .iter()
        .filter(|taint| taint.effect == Effect::PreferNoSchedule)
        .filter(|taint| !tolerates_taint(&workload.tolerations, taint))
        .count()
}

/// Returns true if one of the tolerations matches the taint.
pub fn tolerates_taint(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|toleration| {
        let effect = toleration.effect.is_none_or(|effect| effect == taint.effect);
        let key = toleration.key == taint.key;
        let value = match toleration.operator {
            TolerationOperator::Exists => toleration.key.is_empty() || key,
            TolerationOperator::Equal => key && toleration.value == taint.value,
            TolerationOperator::Lt => {
                key && compare_values(taint, toleration) == Some(Ordering::Less)
            }
            TolerationOperator::Gt => {
                key && compare_values(taint, toleration) == Some(Ordering::Greater)
            }
        };
        effect && value
    })
}

fn compare_values(taint: &Taint, toleration: &Toleration) -> Option<Ordering> {
    Some(parse_integer(&taint.value)?.cmp(&parse_integer(&toleration.value)?))
}

fn parse_integer(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    // kube-scheduler does not read "05" or "+5" as integers.
    (number.to_string() == text).then_some(number)
}

/// Returns true if the labels match the selector and affinity of the workload.
pub fn labels_match(workload: &Workload, labels: &Labels) -> bool {
    let (mut selector, mut wants) = (workload.node_selector.iter(), workload.wants.iter());
    selector.all(|(key, value)| labels.get(key) == Some(value))
        && wants.all(|want| matches_term(want, labels.get(&want.key)))
}

/// Returns true if another pod of the workload keeps the zone of the node within the maximum skew.
/// `zones` has the number of pods in each zone with a matching node.
pub fn is_within_skew(workload: &Workload, node: &Node, zones: &BTreeMap<&str, u32>) -> bool {
    let pods = node.labels.get(ZONE).and_then(|zone| zones.get(zone.as_str()));
    let min_pods = zones.values().min().copied().unwrap_or(0);
    let skew = pods.map(|pods| pods + 1 - min_pods);
    workload.max_skew.is_none_or(|max| skew.is_some_and(|skew| skew <= max))
}

fn matches_term(want: &Want, label: Option<&String>) -> bool {
    match want.operator {
        Operator::In => label.is_some_and(|label| want.values.contains(label)),
        Operator::NotIn => label.is_none_or(|label| !want.values.contains(label)),
        Operator::Exists => label.is_some(),
        Operator::DoesNotExist => label.is_none(),
        Operator::Gt => label_order(want, label).is_some_and(Ordering::is_gt),
        Operator::Gte => label_order(want, label).is_some_and(Ordering::is_ge),
        Operator::Lt => label_order(want, label).is_some_and(Ordering::is_lt),
        Operator::Lte => label_order(want, label).is_some_and(Ordering::is_le),
    }
}

/// Compares a label with the first value of a term. `None` if one is not an integer.
fn label_order(want: &Want, label: Option<&String>) -> Option<Ordering> {
    let bound: i64 = want.values.first()?.parse().ok()?;
    Some(label?.parse::<i64>().ok()?.cmp(&bound))
}

/// Returns true if the requests, including the pod itself, fit. Resources that the pod does not
/// request may be overcommitted.
pub fn has_room(requests: &Resources, allocatable: &Resources, used: &Resources) -> bool {
    let amounts = [
        (requests.cpu_milli, allocatable.cpu_milli, used.cpu_milli),
        (requests.memory, allocatable.memory, used.memory),
        (requests.ephemeral_storage, allocatable.ephemeral_storage, used.ephemeral_storage),
    ];
    let extended = requests.extended.iter().map(|(name, wanted)| {
        let has = allocatable.extended.get(name).copied().unwrap_or(0);
        let taken = used.extended.get(name).copied().unwrap_or(0);
        (*wanted, has, taken)
    });
    used.pods < allocatable.pods
        && amounts
            .into_iter()
            .chain(extended)
            .all(|(wanted, has, taken)| wanted == 0 || wanted <= has - taken)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::is_within_skew;
    use crate::model::labels::{Labels, ZONE};
    use crate::model::node::Node;
    use crate::sim::workload::{Workload, WorkloadKind};

    #[test]
    fn max_skew_limits_the_pod_count_of_a_zone() {
        let zones = BTreeMap::from([("a", 3), ("b", 2), ("c", 1)]);
        for (max_skew, zone, expect) in [
            (Some(1), Some("c"), true),
            (Some(1), Some("b"), false),
            (Some(2), Some("b"), true),
            (Some(2), Some("a"), false),
            (Some(9), Some("elsewhere"), false),
            (Some(9), None, false),
            (None, None, true),
        ] {
            let mut workload = Workload::new("web", WorkloadKind::Deployment);
            workload.max_skew = max_skew;
            let zone = zone.map(|zone| (ZONE.to_owned(), zone.to_owned()));
            let node = Node { labels: Labels::from_iter(zone.clone()), ..Node::default() };
            let got = is_within_skew(&workload, &node, &zones);
            assert_eq!(got, expect, "{max_skew:?} {zone:?}");
        }
    }
}
