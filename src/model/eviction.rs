//! Annotations and settings that control the eviction of a pod: those of Karpenter, of Cluster
//! Autoscaler and of Kubernetes.
//!
//! Source: spec/disruption.md §1.3 and §1.4; Cluster Autoscaler's FAQ, "What types of pods can
//! prevent CA from removing a node".

use jiff::{SignedDuration, Timestamp};

use crate::model::duration::parse_go;
use crate::model::labels::{
    DELETION_COST, DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS, Labels, SAFE_LOCAL_VOLUMES, SAFE_TO_EVICT,
    SCALE_DOWN_DISABLED,
};
use crate::model::pod::Pod;

/// Eviction cost of a pod without priority and deletion cost. These units make the cost exact: one
/// unit of deletion cost is 2^-27 of a pod, and one unit of priority is four times that.
pub const COST_OF_ONE: i64 = 1 << 27;

/// Upper bound of the eviction cost. The negated value is the lower bound.
const COST_MAX: i64 = 10 * COST_OF_ONE;

/// The annotations that protect a pod from disruption.
const PROTECTING: [&str; 2] = [DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS];

/// Controllers that recreate a pod, as defined by Cluster Autoscaler.
const REPLICATING: [&str; 4] = ["ReplicaSet", "ReplicationController", "StatefulSet", "Job"];

/// Annotation values are printed up to this number of characters.
const VALUE_CHARS: usize = 40;

/// The protection of a pod from disruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// The annotation.
    pub key: &'static str,
    /// How long the protection lasts after the pod starts. `None` means that the pod is protected
    /// permanently.
    pub lasts: Option<SignedDuration>,
}

/// Why Cluster Autoscaler would not evict a pod, other than a `safe-to-evict` annotation or a
/// PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AutoscalerRisk<'a> {
    /// The pod has no controller that would recreate it.
    NotReplicated,
    /// The pod is in `kube-system`. It may be evicted if a PodDisruptionBudget matches it.
    System,
    /// The data in this volume would be lost.
    Volume(&'a str),
}

/// Parses a do-not-disrupt annotation. `Ok(None)` if it grants no protection.
fn parse_protection(key: &'static str, value: &str) -> Result<Option<Protection>, ()> {
    let lasts = match value {
        "true" => None,
        "false" => return Ok(None),
        other => Some(parse_go(other).filter(|duration| duration.is_positive()).ok_or(())?),
    };
    Ok(Some(Protection { key, lasts }))
}

/// Parses a deletion cost into units of [`COST_OF_ONE`]. Kubernetes allows integers, Karpenter any
/// number.
#[expect(
    clippy::cast_possible_truncation,
    reason = "it saturates, and what is beyond ten pods counts as ten"
)]
fn deletion_cost(value: &str) -> Option<i64> {
    let number: f64 = value.parse().ok()?;
    number.is_finite().then(|| number.round() as i64)
}

/// Describes an invalid annotation: `karpenter.sh/do-not-disrupt="soon" is …`.
pub fn describe_misread(key: &str, value: &str, wanted: &str) -> String {
    let mut clipped: String = value.chars().take(VALUE_CHARS).collect();
    if clipped.len() < value.len() {
        clipped.push('…');
    }
    format!("{key}={clipped:?} is not {wanted}, and counts for nothing")
}

impl Pod {
    /// Returns whether the pod is neither terminal nor being deleted.
    pub fn is_active(&self) -> bool {
        self.deleting.is_none() && !self.is_terminal()
    }

    /// Returns whether the pod needs a new node if its node is terminated. A pod that is being
    /// deleted already has a replacement, unless a StatefulSet controls it.
    pub fn is_reschedulable(&self) -> bool {
        let owner = self.owner.as_ref();
        self.occupies_node()
            && (self.deleting.is_none() || owner.is_some_and(|owner| owner.kind == "StatefulSet"))
    }

    /// Returns whether the pod justifies keeping a node: it is reschedulable and its eviction cost
    /// is positive.
    pub fn holds_node(&self) -> bool {
        self.is_reschedulable() && self.eviction_cost() > 0
    }

    /// Eviction cost in units of [`COST_OF_ONE`]. It increases with the deletion cost
    /// (`controller.kubernetes.io/pod-deletion-cost`) and with the priority, and is clamped to at
    /// most ten times [`COST_OF_ONE`] in both directions.
    pub fn eviction_cost(&self) -> i64 {
        let value = self.annotations.get(DELETION_COST);
        let requested = value.and_then(|value| deletion_cost(value)).unwrap_or(0);
        requested
            .saturating_add(COST_OF_ONE + i64::from(self.priority) * 4)
            .clamp(-COST_MAX, COST_MAX)
    }

    /// Returns the current protection from disruption. A duration starts when the pod starts. A pod
    /// that has not started is protected. A terminal or terminating pod is not protected.
    pub fn active_protection(&self, now: Timestamp) -> Option<Protection> {
        let mut current = self.declared_protections().filter(|protection| {
            let duration = protection.lasts.zip(self.started);
            duration.is_none_or(|(lasts, started)| now.duration_since(started) < lasts)
        });
        current.next().filter(|_| self.is_active())
    }

    /// Returns whether the pod is currently protected from disruption.
    pub fn is_protected(&self, now: Timestamp) -> bool {
        self.active_protection(now).is_some()
    }

    /// When the current protection ends. `None` if it is permanent or the pod has not started.
    pub fn protected_until(&self, now: Timestamp) -> Option<Timestamp> {
        let lasts = self.active_protection(now)?.lasts?;
        self.started?.checked_add(lasts).ok()
    }

    /// Returns whether the pod has a protection, expired or not.
    pub fn may_be_protected(&self) -> bool {
        self.is_active() && self.declared_protections().next().is_some()
    }

    fn declared_protections(&self) -> impl Iterator<Item = Protection> {
        let keys = PROTECTING.into_iter();
        keys.filter_map(|key| parse_protection(key, self.annotations.get(key)?).ok().flatten())
    }

    /// Returns whether an annotation forbids Cluster Autoscaler to evict the pod. Daemons and
    /// mirror pods are never unsafe.
    pub fn is_unsafe_to_evict(&self) -> bool {
        let annotation = self.annotations.get(SAFE_TO_EVICT);
        self.is_active() && self.occupies_node() && annotation.is_some_and(|value| value == "false")
    }

    /// Returns whether the pod can be evicted through the eviction API: it is active, not a mirror
    /// pod, does not tolerate the disrupted taint, and is not protected.
    pub fn is_evictable(&self, now: Timestamp) -> bool {
        self.is_active()
            && !self.is_mirror()
            && !self.tolerates_disruption()
            && !self.is_protected(now)
    }

    /// Returns why Cluster Autoscaler would not evict the pod, unless an annotation marks it as
    /// safe.
    pub fn autoscaler_risk(&self) -> Option<AutoscalerRisk<'_>> {
        let annotation = self.annotations.get(SAFE_TO_EVICT);
        let is_considered = self.is_active() && self.occupies_node();
        if !is_considered || annotation.is_some_and(|value| value == "true") {
            return None;
        }
        let owner = self.owner.as_ref();
        if !owner.is_some_and(|owner| REPLICATING.contains(&owner.kind.as_str())) {
            return Some(AutoscalerRisk::NotReplicated);
        }
        let safe = self.annotations.get(SAFE_LOCAL_VOLUMES);
        let safe = safe.map_or("", String::as_str);
        let mut volumes = self.local_volumes.iter();
        if let Some(volume) =
            volumes.find(|volume| safe.split(',').all(|name| name.trim() != *volume))
        {
            return Some(AutoscalerRisk::Volume(volume));
        }
        (self.key.namespace == "kube-system").then_some(AutoscalerRisk::System)
    }

    /// Describes the invalid annotations of the pod, each as a sentence fragment.
    pub fn annotation_misreads(&self) -> impl Iterator<Item = String> {
        PROTECTING.into_iter().chain([SAFE_TO_EVICT, DELETION_COST]).filter_map(|key| {
            let value = self.annotations.get(key)?.as_str();
            let (is_valid, wanted) = match key {
                SAFE_TO_EVICT => (matches!(value, "true" | "false"), "true or false"),
                DELETION_COST => (deletion_cost(value).is_some(), "a number"),
                _ => (
                    parse_protection(key, value).is_ok(),
                    "true, false or a duration above zero like 30m",
                ),
            };
            (!is_valid).then(|| describe_misread(key, value, wanted))
        })
    }
}

/// Describes the invalid annotations of a node. Unlike pods, nodes are protected permanently or not
/// at all.
pub fn misreads_of_node(annotations: &Labels) -> impl Iterator<Item = String> {
    const WANTED: &str = "true or false, which is all that a node can say";
    PROTECTING
        .into_iter()
        .chain([SCALE_DOWN_DISABLED])
        .filter_map(|key| Some((key, annotations.get(key)?.as_str())))
        .filter(|(_, value)| !matches!(*value, "true" | "false"))
        .map(|(key, value)| describe_misread(key, value, WANTED))
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::{AutoscalerRisk, COST_OF_ONE, misreads_of_node};
    use crate::model::id::ObjectKey;
    use crate::model::labels::{
        DELETION_COST, DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS, SAFE_LOCAL_VOLUMES, SAFE_TO_EVICT,
        SCALE_DOWN_DISABLED,
    };
    use crate::model::pod::{Owner, Pod, PodPhase};

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn owned(kind: &str) -> Pod {
        Pod {
            key: ObjectKey::new("default", "p"),
            node: Some("n".into()),
            owner: (!kind.is_empty()).then(|| Owner {
                kind: kind.to_owned(),
                name: "o".to_owned(),
                uid: "o".to_owned(),
            }),
            ..Pod::default()
        }
    }

    fn annotated(mut pod: Pod, pairs: &[(&str, &str)]) -> Pod {
        for (key, value) in pairs {
            pod.annotations.insert((*key).to_owned(), (*value).to_owned());
        }
        pod
    }

    #[test]
    fn eviction_cost_grows_with_deletion_cost_and_priority() {
        let one = COST_OF_ONE;
        let cases = [
            ("", 0, one),
            ("100", 0, one + 100),
            ("-100", 0, one - 100),
            ("99.6", 0, one + 100),
            ("1e3", 0, one + 1000),
            ("", 1, one + 4),
            ("", -1, one - 4),
            ("7", 5, one + 27),
            ("134217728", 0, 2 * one),
            ("-134217728", 0, 0),
            ("-2147483647", 0, -10 * one),
            ("2147483647", 0, 10 * one),
            ("", 1_000_000_000, 10 * one),
            ("", i32::MIN, -10 * one),
            ("1e300", -5, 10 * one),
            ("dear", 0, one),
            ("NaN", 0, one),
            ("inf", 0, one),
        ];
        for (deletion_cost, priority, expect) in cases {
            let mut pod = owned("ReplicaSet");
            if !deletion_cost.is_empty() {
                pod = annotated(pod, &[(DELETION_COST, deletion_cost)]);
            }
            pod.priority = priority;
            assert_eq!(pod.eviction_cost(), expect, "{deletion_cost:?} {priority}");
            assert_eq!(pod.holds_node(), expect > 0, "{deletion_cost:?} {priority}");
        }
    }

    fn minutes(count: i64) -> Option<Timestamp> {
        Some(NOW - SignedDuration::from_mins(count))
    }

    #[test]
    fn do_not_disrupt_protects_forever_or_for_a_duration() {
        let cases = [
            ("true", minutes(600), true),
            ("True", minutes(600), false),
            ("false", None, false),
            ("30m", minutes(29), true),
            ("30m", minutes(30), false),
            ("30m", None, true),
            ("1h30m", minutes(89), true),
            ("0s", None, false),
            ("-5m", None, false),
            ("soon", None, false),
            ("", None, false),
        ];
        for key in [DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS] {
            for (value, started, expect) in cases {
                let mut pod = annotated(owned("ReplicaSet"), &[(key, value)]);
                pod.started = started;
                assert_eq!(pod.is_protected(NOW), expect, "{value:?} {started:?}");
                assert!(!expect || pod.may_be_protected());
                pod.deleting = Some(NOW);
                assert!(!pod.is_protected(NOW), "a terminating pod");
                (pod.deleting, pod.phase) = (None, PodPhase::Failed);
                assert!(!pod.is_protected(NOW), "a finished pod");
            }
        }
        let mut both =
            annotated(owned("Job"), &[(DO_NOT_DISRUPT, "1m"), (DO_NOT_DISRUPT_ALIAS, "1h")]);
        both.started = minutes(2);
        let until = both.active_protection(NOW).expect("one of the two protects it");
        assert_eq!(until.key, DO_NOT_DISRUPT_ALIAS);
    }

    #[test]
    fn invalid_annotations_are_reported_and_ignored() {
        let cases: [(&[(&str, &str)], usize); 8] = [
            (&[], 0),
            (&[(DO_NOT_DISRUPT, "true"), (SAFE_TO_EVICT, "true")], 0),
            (&[(DO_NOT_DISRUPT, "false"), (SAFE_TO_EVICT, "false")], 0),
            (&[(DO_NOT_DISRUPT, "1h"), (DELETION_COST, "-3")], 0),
            (&[(DO_NOT_DISRUPT, "-1h")], 1),
            (&[(DO_NOT_DISRUPT, "soon"), (DO_NOT_DISRUPT_ALIAS, "")], 2),
            (&[(SAFE_TO_EVICT, "yes"), (DELETION_COST, "dear")], 2),
            (&[(DELETION_COST, "NaN")], 1),
        ];
        for (pairs, expect) in cases {
            let misreads: Vec<String> =
                annotated(owned("Job"), pairs).annotation_misreads().collect();
            assert_eq!(misreads.len(), expect, "{misreads:?}");
        }
        let node = |key: &str, value: &str| {
            let annotations = [(key.to_owned(), value.to_owned())].into();
            misreads_of_node(&annotations).count()
        };
        assert_eq!(node(SCALE_DOWN_DISABLED, "true"), 0);
        assert_eq!(node(SCALE_DOWN_DISABLED, "yes"), 1);
        assert_eq!(node(DO_NOT_DISRUPT, "1h"), 1, "a node is protected forever or not at all");
        let long = format!("\u{1b}[2J{}", "x".repeat(1000));
        let misreads: Vec<String> =
            annotated(owned("Job"), &[(DO_NOT_DISRUPT, &long)]).annotation_misreads().collect();
        assert!(misreads[0].chars().count() < 200, "{misreads:?}");
        assert!(!misreads[0].contains('\u{1b}'), "{misreads:?}");
    }

    /// Owner kind, namespace, local volumes, annotations and the expected risk.
    type RiskCase = (
        &'static str,
        &'static str,
        &'static [&'static str],
        &'static [(&'static str, &'static str)],
        Option<AutoscalerRisk<'static>>,
    );

    const RISK_CASES: [RiskCase; 15] = [
        ("ReplicaSet", "default", &[], &[], None),
        ("Job", "default", &[], &[], None),
        ("StatefulSet", "default", &[], &[], None),
        ("ReplicationController", "default", &[], &[], None),
        ("", "default", &[], &[], Some(AutoscalerRisk::NotReplicated)),
        ("CloneSet", "default", &[], &[], Some(AutoscalerRisk::NotReplicated)),
        ("", "default", &[], &[(SAFE_TO_EVICT, "true")], None),
        ("DaemonSet", "kube-system", &["tmp"], &[], None),
        ("Node", "kube-system", &["tmp"], &[], None),
        ("ReplicaSet", "kube-system", &[], &[], Some(AutoscalerRisk::System)),
        ("ReplicaSet", "kube-system", &["tmp"], &[(SAFE_TO_EVICT, "true")], None),
        ("Job", "default", &["tmp", "logs"], &[], Some(AutoscalerRisk::Volume("tmp"))),
        (
            "Job",
            "default",
            &["tmp", "logs"],
            &[(SAFE_LOCAL_VOLUMES, "tmp")],
            Some(AutoscalerRisk::Volume("logs")),
        ),
        ("Job", "default", &["tmp", "logs"], &[(SAFE_LOCAL_VOLUMES, "logs, tmp")], None),
        (
            "Job",
            "default",
            &["tmp"],
            &[(SAFE_TO_EVICT, "false")],
            Some(AutoscalerRisk::Volume("tmp")),
        ),
    ];

    #[test]
    fn autoscaler_risk_follows_cluster_autoscaler_rules() {
        for (kind, namespace, volumes, pairs, expect) in RISK_CASES {
            let mut pod = annotated(owned(kind), pairs);
            pod.key.namespace = namespace.to_owned();
            pod.local_volumes = volumes.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(pod.autoscaler_risk(), expect, "{kind} {namespace} {volumes:?} {pairs:?}");
            pod.phase = PodPhase::Succeeded;
            assert_eq!(pod.autoscaler_risk(), None, "it has ended");
        }
    }
}
