//! Writes the planned capacity into the status of CapacityBuffers, as their API requires.
//!
//! Source: docs/decisions/011-capacity-buffers-are-listed-not-watched.md.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::backoff::{Backoff, Denied};
use crate::engine::command::{BufferPatch, Command};
use crate::engine::context::Context;
use crate::engine::controllers::Consolidation;
use crate::engine::in_flight::CommandPurpose;
use crate::engine::report::Report;
use crate::model::buffer::Buffer;
use crate::model::buffer_object::{BufferObject, BufferRooms, BufferStatus, Unresolved};
use crate::model::id::ObjectKey;
use crate::provider::{CommandResult, FailureKind};

/// Maximum number of statuses written simultaneously: there may be hundreds.
const PATCHES_MAX: usize = 16;

/// Minimum interval between updates of one status, because nodes in progress change with each plan.
const APART: SignedDuration = SignedDuration::from_secs(5);

/// A status that was written or is being written.
#[derive(Clone, Debug)]
struct WrittenStatus {
    /// The version of the object before the update. Empty if the update failed.
    version: String,
    /// The written status.
    status: BufferStatus,
    /// Time of the update.
    at: Timestamp,
}

/// The progress of status updates.
#[derive(Clone, Debug, Default)]
pub(super) struct BufferStatuses {
    /// The capacity of each buffer in the last plan. `None` before the first plan.
    room: Option<BufferRooms>,
    /// The last status written, by object.
    written: BTreeMap<ObjectKey, WrittenStatus>,
    /// Back-off after a failed update.
    retry: Backoff,
    /// True if the permission to write statuses is denied.
    pub(super) denied: Denied,
}

impl BufferStatuses {
    /// Records the planned capacity.
    pub(super) fn record_plan(&mut self, room: BufferRooms) {
        self.room = Some(room);
    }
}

impl BufferStatuses {
    /// Writes each status that differs from the plan.
    pub(super) fn write_buffer_statuses(&mut self, cx: &mut Context, now: Timestamp) {
        if !cx.is_managing() || self.denied.is_denied() {
            return;
        }
        let retry = self.retry.next_attempt();
        if cx.outbox.waits_until(retry, "the status of CapacityBuffers is written again", now) {
            return;
        }
        let under_way = cx
            .outbox
            .in_flight
            .values()
            .filter(|in_flight| matches!(in_flight.kind, CommandPurpose::BufferStatus(_)))
            .count();
        let free = PATCHES_MAX.saturating_sub(under_way);
        let mut patches = Vec::new();
        let mut next: Option<Timestamp> = None;
        for object in cx.state.declared.iter().flatten() {
            if patches.len() == free {
                break;
            }
            let Some(status) = self.needed_status(object, now) else {
                continue;
            };
            let written = self.written.get(&object.key);
            // The API server has this status, is about to have it, or has refused it. The same
            // status is not written again for the same version.
            if written.is_some_and(|written| {
                written.version == object.version && written.status.has_same_content(&status)
            }) {
                continue;
            }
            let due = written.and_then(|written| written.at.checked_add(APART).ok());
            if let Some(due) = due.filter(|due| *due > now) {
                next = next.into_iter().chain([due]).min();
                continue;
            }
            patches.push(BufferPatch {
                key: object.key.clone(),
                api: object.api,
                version: object.version.clone(),
                status,
            });
        }
        cx.outbox.wake_at(next, "the status of CapacityBuffers has changed");
        for patch in patches {
            let written = WrittenStatus {
                version: patch.version.clone(),
                status: patch.status.clone(),
                at: now,
            };
            self.written.insert(patch.key.clone(), written);
            let purpose = CommandPurpose::BufferStatus(Box::new(patch.clone()));
            cx.outbox.queue_command(Command::PatchBuffer(Box::new(patch)), purpose, now);
        }
    }

    /// Cancels the status updates that are still in the queue.
    fn cancel_status_updates(&mut self, cx: &mut Context) {
        let is_update = |_: &Command, purpose: &CommandPurpose| {
            matches!(purpose, CommandPurpose::BufferStatus(_))
        };
        for (_, purpose) in cx.outbox.withdraw_queued(is_update) {
            if let CommandPurpose::BufferStatus(patch) = purpose
                && let Some(status) = self.written.get_mut(&patch.key)
            {
                status.version.clear();
            }
        }
    }

    /// Returns the status that an object should have, if its current status differs. `None` before
    /// its capacity is planned, or if its current status is invalid.
    fn needed_status(&self, object: &BufferObject, now: Timestamp) -> Option<BufferStatus> {
        let before = object.status.as_ref()?;
        let room = match &object.buffer {
            Err(why) => Err(why.clone()),
            Ok(buffer) => {
                let rooms = self.room.as_ref()?;
                let count = *rooms.get(&buffer.name)?;
                count.ok_or_else(|| Unresolved::resolution_failed(unknown_shape_message(buffer)))
            }
        };
        let status = object.status_of(before, room.as_ref().copied(), now);
        (!status.has_same_content(before)).then_some(status)
    }

    /// Handles the result of a status update.
    pub(super) fn on_buffer_status_result(
        &mut self,
        cx: &mut Context,
        patch: BufferPatch,
        result: CommandResult,
        now: Timestamp,
    ) {
        let (kind, text) = match result {
            CommandResult::Version(version) => {
                self.retry = Backoff::default();
                let mut objects = cx.state.declared.iter_mut().flatten();
                if let Some(object) = objects
                    .find(|object| object.key == patch.key && object.version == patch.version)
                {
                    (object.version, object.status) = (version, Some(patch.status));
                }
                return;
            }
            CommandResult::Failed { kind, text } => (kind, text),
            _ => return,
        };
        let statuses = &mut *self;
        let written = statuses.written.get_mut(&patch.key);
        match kind {
            // The API server rejects the status of this object. A different status is tried later.
            FailureKind::Gone => {
                let command = "patch_buffer";
                cx.outbox.push_report(Report::Failed { command, kind, text });
            }
            FailureKind::Conflict | FailureKind::Invalid => {}
            FailureKind::Denied
            | FailureKind::Withdrawn
            | FailureKind::Throttled
            | FailureKind::Busy
            | FailureKind::Unknown => {
                written.into_iter().for_each(|status| status.version.clear());
                if kind == FailureKind::Denied && !statuses.denied.is_denied() {
                    statuses.denied.deny_at(now);
                    self.cancel_status_updates(cx);
                } else if kind != FailureKind::Withdrawn && statuses.retry.is_due(now) {
                    statuses.retry.record_failure(now, &mut cx.rng);
                }
            }
        }
    }
}

/// Records the CapacityBuffers of the cluster. If their required capacity has changed, it is
/// planned again.
pub(super) fn apply_buffers(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    buffer_statuses: &mut BufferStatuses,
    objects: Vec<BufferObject>,
    now: Timestamp,
) {
    let known: BTreeSet<&ObjectKey> = objects.iter().map(|object| &object.key).collect();
    let statuses = &mut *buffer_statuses;
    statuses.written.retain(|key, _| known.contains(key));
    let same = cx.state.declared.as_deref().is_some_and(|before| {
        let before = before.iter().filter_map(BufferObject::declared_buffer);
        before.eq(objects.iter().filter_map(BufferObject::declared_buffer))
    });
    cx.state.declared = Some(objects);
    if !same {
        statuses.room = None;
        cx.static_schedule.forget_results();
        consolidation.schedule.mark_changed(now);
    }
}

/// Returns the message that the pod template of a buffer is unknown because its workload has no
/// pods.
fn unknown_shape_message(buffer: &Buffer) -> String {
    let workload = buffer.scalable.as_ref();
    let name = workload.map(|workload| format!("{}/{}", workload.namespace, workload.name));
    let name = name.unwrap_or_default();
    format!("{name} has no pods, and Outrigger reads the pod template from them")
}
