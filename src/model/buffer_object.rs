//! CapacityBuffer objects of the Kubernetes API: the buffer that each declares, and its status.
//!
//! Source: the types of `autoscaling.x-k8s.io/v1beta1`; spec/scheduling.md §3.5.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::buffer::Buffer;
use crate::model::id::ObjectKey;

/// Longest condition message that is written, in bytes. The API allows 32,768.
const MESSAGE_BYTES: usize = 1_000;

/// A CapacityBuffer object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferObject {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The API version with which the object was read, such as `v1beta1`.
    pub api: &'static str,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// `metadata.generation`, which increases with each change of the spec.
    pub generation: i64,
    /// `spec.provisioningStrategy`.
    pub strategy: Option<String>,
    /// The name and generation of the PodTemplate. `None` if the buffer refers to a workload.
    pub template: Option<(String, i64)>,
    /// The buffer that the object declares, or the reason why it declares no buffer.
    pub buffer: Result<Buffer, Unresolved>,
    /// `status` as it was read. `None` if it cannot be parsed; it is then never written.
    pub status: Option<BufferStatus>,
}

/// Why a CapacityBuffer cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// The reason of the condition `ReadyForProvisioning`.
    pub reason: &'static str,
    /// The message of the condition.
    pub message: String,
}

impl Unresolved {
    /// The spec or its PodTemplate is invalid.
    pub const FAILED: &'static str = "ResolutionFailed";
    /// The PodTemplate does not exist.
    pub const NO_TEMPLATE: &'static str = "PodTemplateNotFound";

    /// An invalid spec, with a message.
    pub fn resolution_failed(message: impl Into<String>) -> Self {
        Self { reason: Self::FAILED, message: message.into() }
    }
}

/// The fields of `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BufferStatus {
    /// `podTemplateRef.name`.
    pub template: Option<String>,
    /// `podTemplateGeneration`.
    pub template_generation: Option<i64>,
    /// `replicas`: the number of pods for which capacity is reserved.
    pub replicas: Option<i64>,
    /// `provisioningStrategy`.
    pub strategy: Option<String>,
    /// All conditions, including those of other controllers.
    pub conditions: Vec<Condition>,
}

/// A Kubernetes condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// `type`.
    pub kind: String,
    /// `status`: `True`, `False` or `Unknown`.
    pub status: String,
    /// `reason`.
    pub reason: String,
    /// `message`.
    pub message: String,
    /// `observedGeneration`.
    pub observed_generation: Option<i64>,
    /// `lastTransitionTime`: when `status` last changed.
    pub since: Option<Timestamp>,
}

/// Number of virtual pods of a buffer by their location in the last plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomCount {
    /// Virtual pods on existing nodes.
    pub there: u32,
    /// Virtual pods on nodes that are being launched or planned.
    pub coming: u32,
    /// Unschedulable virtual pods.
    pub missing: u32,
}

/// The pod counts of each buffer. `None` if the pod specification of the buffer is unknown.
pub type BufferRooms = BTreeMap<String, Option<RoomCount>>;

impl BufferStatus {
    /// Returns whether two statuses are equal, ignoring transition times.
    pub fn has_same_content(&self, other: &Self) -> bool {
        self.without_times() == other.without_times()
    }

    /// Returns the status without the transition times of its conditions.
    fn without_times(&self) -> Self {
        let mut status = self.clone();
        for condition in &mut status.conditions {
            condition.since = None;
        }
        status
    }
}

impl RoomCount {
    /// The number of virtual pods.
    pub fn pod_count(self) -> u32 {
        self.there + self.coming + self.missing
    }
}

/// `ReadyForProvisioning`: whether the buffer is resolved.
const READY: &str = "ReadyForProvisioning";
/// `Provisioning`: whether all virtual pods have a node.
const PROVISIONING: &str = "Provisioning";

impl BufferObject {
    /// The buffer that the object declares.
    pub fn declared_buffer(&self) -> Option<&Buffer> {
        self.buffer.as_ref().ok()
    }

    /// Returns the new `status`, given the previous one and the pod counts. Conditions of other
    /// controllers are kept.
    pub fn status_of(
        &self,
        before: &BufferStatus,
        counts: Result<RoomCount, &Unresolved>,
        now: Timestamp,
    ) -> BufferStatus {
        let (template, replicas) = match counts {
            Ok(counts) => (self.template.clone(), Some(i64::from(counts.pod_count()))),
            Err(_) => (None, None),
        };
        let (template, template_generation) = template.unzip();
        let mut status = BufferStatus {
            template,
            template_generation,
            replicas,
            strategy: self.strategy.clone(),
            conditions: before.conditions.clone(),
        };
        let (ready, provisioning) = match counts {
            Err(unresolved) => (
                new_condition(READY, false, unresolved.reason, &unresolved.message),
                new_condition(
                    PROVISIONING,
                    false,
                    "NotReadyForProvisioning",
                    "it is not known what room is wanted",
                ),
            ),
            Ok(counts) => (
                new_condition(READY, true, "Resolved", "it is known what room is wanted"),
                provisioning_condition(counts),
            ),
        };
        for condition in [ready, provisioning] {
            self.set_condition(&mut status.conditions, condition, now);
        }
        status
    }

    /// Replaces the condition of the same kind. The transition time is kept if the status does not
    /// change.
    fn set_condition(
        &self,
        conditions: &mut Vec<Condition>,
        mut condition: Condition,
        now: Timestamp,
    ) {
        condition.observed_generation = Some(self.generation);
        condition.since = Some(now);
        match conditions.iter_mut().find(|old| old.kind == condition.kind) {
            Some(old) => {
                if old.status == condition.status {
                    condition.since = old.since.or(condition.since);
                }
                *old = condition;
            }
            None => conditions.push(condition),
        }
    }
}

/// A condition without generation and transition time.
fn new_condition(kind: &str, holds: bool, reason: &str, message: &str) -> Condition {
    let status = if holds { "True" } else { "False" };
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message[..message.floor_char_boundary(MESSAGE_BYTES)].to_owned(),
        ..Condition::default()
    }
}

/// Returns the condition `Provisioning`. The reasons are Karpenter's.
fn provisioning_condition(counts: RoomCount) -> Condition {
    let RoomCount { there, coming, missing } = counts;
    let wanted = counts.pod_count();
    if wanted == 0 {
        return new_condition(PROVISIONING, false, "BufferEmpty", "room for 0 pods is wanted");
    }
    if there == wanted {
        let message = format!("there is room for all {wanted} pods");
        return new_condition(PROVISIONING, true, "FitsExistingCapacity", &message);
    }
    let mut message = format!("there is room for {there} of {wanted} pods");
    if coming > 0 {
        message += &format!("; nodes for {coming} are on their way");
    }
    if missing > 0 {
        message += &format!("; for {missing} there is none to be had");
    }
    new_condition(PROVISIONING, false, "RequiresNewCapacity", &message)
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::{BufferObject, BufferStatus, Condition, RoomCount, Unresolved};
    use crate::model::buffer::Buffer;
    use crate::model::id::ObjectKey;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn object() -> BufferObject {
        BufferObject {
            key: ObjectKey::new("shop", "room"),
            api: "v1beta1",
            version: "7".to_owned(),
            generation: 3,
            strategy: Some("buffer.x-k8s.io/active-capacity".to_owned()),
            template: Some(("web".to_owned(), 2)),
            buffer: Ok(Buffer::default()),
            status: Some(BufferStatus::default()),
        }
    }

    fn condition_texts(status: &BufferStatus) -> Vec<String> {
        let conditions = status.conditions.iter();
        let texts = conditions.map(|it| format!("{}={} {}", it.kind, it.status, it.reason));
        texts.collect()
    }

    fn room(there: u32, coming: u32, missing: u32) -> RoomCount {
        RoomCount { there, coming, missing }
    }

    #[test]
    fn buffer_status_reports_wanted_and_available_room() {
        for (room, expect, words) in [
            (room(0, 0, 0), "False BufferEmpty", "room for 0 pods is wanted"),
            (room(3, 0, 0), "True FitsExistingCapacity", "there is room for all 3 pods"),
            (
                room(1, 2, 0),
                "False RequiresNewCapacity",
                "there is room for 1 of 3 pods; nodes for 2 are on their way",
            ),
            (
                room(0, 0, 4),
                "False RequiresNewCapacity",
                "there is room for 0 of 4 pods; for 4 there is none to be had",
            ),
        ] {
            let status = object().status_of(&BufferStatus::default(), Ok(room), NOW);
            let provisioning = format!("Provisioning={expect}");
            let ready = "ReadyForProvisioning=True Resolved".to_owned();
            assert_eq!(condition_texts(&status), [ready, provisioning]);
            assert_eq!(status.conditions[1].message, words);
            assert_eq!(status.replicas, Some(i64::from(room.pod_count())));
            let template = (status.template.as_deref(), status.template_generation);
            assert_eq!(template, (Some("web"), Some(2)));
            let observed = status.conditions.iter().map(|condition| condition.observed_generation);
            assert!(
                observed.clone().all(|generation| generation == Some(3)) && observed.count() == 2
            );
        }
    }

    #[test]
    fn unresolved_buffer_status_has_no_template_and_no_replicas() {
        let why = Unresolved {
            reason: Unresolved::NO_TEMPLATE,
            message: "its PodTemplate shop/web is not there".to_owned(),
        };
        let status = object().status_of(&BufferStatus::default(), Err(&why), NOW);
        let expect = [
            "ReadyForProvisioning=False PodTemplateNotFound",
            "Provisioning=False NotReadyForProvisioning",
        ];
        assert_eq!(condition_texts(&status), expect);
        assert_eq!(status.conditions[0].message, why.message);
        let rest = (status.template, status.template_generation, status.replicas);
        assert_eq!(rest, (None, None, None));
    }

    #[test]
    fn status_keeps_transition_times_and_foreign_conditions() {
        let quotas = Condition {
            kind: "LimitedByQuotas".to_owned(),
            status: "True".to_owned(),
            since: Some(NOW),
            ..Condition::default()
        };
        let buffer = object();
        let mut before = BufferStatus::default();
        before.conditions.push(quotas.clone());
        let before = buffer.status_of(&before, Ok(room(0, 2, 0)), NOW);
        assert_eq!(before.conditions[0], quotas);
        assert_eq!(before.conditions.len(), 3);
        let at = |seconds| NOW + SignedDuration::from_secs(seconds);
        let after = |room| buffer.status_of(&before, Ok(room), at(60));
        assert_eq!(after(room(0, 2, 0)), before);
        let half = after(room(1, 1, 0));
        assert!(!half.has_same_content(&before));
        assert_eq!(half.conditions[2].since, Some(NOW), "the condition is still false");
        let available = after(room(2, 0, 0));
        assert_eq!(available.conditions[2].since, Some(at(60)));
        let later = buffer.status_of(&BufferStatus::default(), Ok(room(2, 0, 0)), at(90));
        let sooner = buffer.status_of(&BufferStatus::default(), Ok(room(2, 0, 0)), at(60));
        assert!(later != sooner && later.has_same_content(&sooner));
    }

    #[test]
    fn condition_message_is_truncated_at_a_character_boundary() {
        let why = Unresolved::resolution_failed("ü".repeat(600));
        let status = object().status_of(&BufferStatus::default(), Err(&why), NOW);
        assert_eq!(status.conditions[0].message.len(), 1_000);
        let why = Unresolved::resolution_failed(format!("x{}", "ü".repeat(600)));
        let status = object().status_of(&BufferStatus::default(), Err(&why), NOW);
        assert_eq!(status.conditions[0].message.len(), 999);
    }
}
