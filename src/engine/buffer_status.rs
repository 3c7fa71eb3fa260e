//! Writes into the status of CapacityBuffers what is planned for them, as their API asks of an
//! autoscaler. It must not know how room is planned, nor how a status is written.
//!
//! Source: docs/decisions/011-capacity-buffers-are-listed-not-watched.md.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::backoff::Retry;
use crate::engine::command::{Answer, BufferPatch, Command, FailureKind};
use crate::engine::work::{Flight, FlightKind};
use crate::model::buffer::Buffer;
use crate::model::buffer_object::{BufferObject, BufferStatus, RoomCount, Unresolved};
use crate::model::id::ObjectKey;

/// Statuses that are written at once: there may be hundreds.
const PATCHES_MAX: usize = 16;

/// One status is written at most this often: what is on its way may change with each plan.
const APART: SignedDuration = SignedDuration::from_secs(5);

/// What is known of statuses beside the objects.
#[derive(Clone, Debug, Default)]
pub(super) struct BufferStatuses {
    /// Where each buffer has its room, as last planned; none before that.
    room: Option<BTreeMap<String, RoomCount>>,
    /// Objects whose status was written, or is being written, and when. Each has the version that
    /// was known before: until another is known, nobody knows what the status says.
    written: BTreeMap<ObjectKey, (String, Timestamp)>,
    /// When a status is written again, after a failure.
    retry: Retry,
    /// Whether none may be written.
    denied: bool,
}

impl BufferStatuses {
    /// Another configuration is in force: rights may be others.
    pub(super) fn configured(&mut self) {
        self.denied = false;
    }

    /// Room was planned.
    pub(super) fn planned(&mut self, room: BTreeMap<String, RoomCount>) {
        self.room = Some(room);
    }
}

impl Engine {
    /// Takes in the CapacityBuffers of the cluster. Room is planned anew where other room is
    /// wanted.
    pub(super) fn declared(&mut self, objects: Vec<BufferObject>) {
        let known: BTreeSet<&ObjectKey> = objects.iter().map(|own| &own.key).collect();
        let statuses = &mut self.buffer_statuses;
        statuses.written.retain(|key, _| known.contains(key));
        let before = self.state.declared.as_deref();
        let wanted = |own: &BufferObject| own.buffer.as_ref().ok().cloned();
        let same = before.is_some_and(|before| {
            let before = before.iter().filter_map(wanted);
            before.eq(objects.iter().filter_map(wanted))
        });
        self.state.declared = Some(objects);
        if !same {
            statuses.room = None;
            self.numbers.forget();
        }
    }

    /// Writes each status that does not say what is planned.
    pub(super) fn write_buffer_statuses(&mut self, now: Timestamp) {
        let statuses = &self.buffer_statuses;
        if !self.manages() || statuses.denied {
            return;
        }
        if let Some(at) = statuses.retry.next().filter(|at| *at > now) {
            self.wake_at(at, "the status of CapacityBuffers is written again");
            return;
        }
        let of_status = |own: &&Flight| matches!(own.kind, FlightKind::BufferStatus(_));
        let under_way = self.flights.values().filter(of_status).count();
        let free = PATCHES_MAX.saturating_sub(under_way);
        let mut patches = Vec::new();
        let mut next: Option<Timestamp> = None;
        for own in self.state.declared.iter().flatten() {
            let written = statuses.written.get(&own.key);
            if patches.len() == free || written.is_some_and(|(version, _)| *version == own.version)
            {
                continue;
            }
            let Some(status) = self
                .buffer_status(own, now)
                .filter(|new| *new != own.status)
            else {
                continue;
            };
            let due = written.and_then(|(_, at)| at.checked_add(APART).ok());
            if let Some(due) = due.filter(|due| *due > now) {
                next = next.into_iter().chain([due]).min();
                continue;
            }
            patches.push(BufferPatch {
                key: own.key.clone(),
                api: own.api,
                version: own.version.clone(),
                status,
            });
        }
        if let Some(at) = next {
            self.wake_at(
                at,
                "the status of CapacityBuffers says something else by now",
            );
        }
        for patch in patches {
            let written = (patch.version.clone(), now);
            let statuses = &mut self.buffer_statuses;
            statuses.written.insert(patch.key.clone(), written);
            let flight = FlightKind::BufferStatus(Box::new(patch.clone()));
            self.issue(Command::PatchBuffer(Box::new(patch)), flight, now);
        }
    }

    /// What the status of an object has to say; none before its room is planned.
    fn buffer_status(&self, own: &BufferObject, now: Timestamp) -> Option<BufferStatus> {
        let buffer = match &own.buffer {
            Ok(buffer) => buffer,
            Err(why) => return Some(own.status_of(Err(why), now)),
        };
        let room = self.buffer_statuses.room.as_ref()?;
        let count = room.get(&buffer.name).copied().unwrap_or_default();
        if count == RoomCount::default()
            && let Some(why) = self.unlike_any(buffer)
        {
            return Some(own.status_of(Err(&Unresolved::failed(why)), now));
        }
        Some(own.status_of(Ok(count), now))
    }

    /// Why it is not known what the pods of a buffer are like: its workload has none.
    fn unlike_any(&self, buffer: &Buffer) -> Option<String> {
        let workload = buffer.scalable.as_ref().filter(|_| buffer.pod.is_none())?;
        let mut pods = self.state.objects.pods.values();
        (!pods.any(|pod| workload.has(pod))).then(|| {
            let (namespace, name) = (&workload.namespace, &workload.name);
            format!("{namespace}/{name} has no pod, and what its pods are like is read off them")
        })
    }

    /// A status was written, or not.
    pub(super) fn buffer_status_written(
        &mut self,
        patch: BufferPatch,
        answer: Answer,
        now: Timestamp,
    ) {
        let kind = match answer {
            Answer::Version(version) => {
                self.buffer_statuses.retry = Retry::default();
                let mut all = self.state.declared.iter_mut().flatten();
                let is_same =
                    |own: &&mut BufferObject| own.key == patch.key && own.version == patch.version;
                if let Some(own) = all.find(is_same) {
                    (own.version, own.status) = (version, patch.status);
                }
                return;
            }
            Answer::Failed { kind, .. } => kind,
            _ => return,
        };
        match kind {
            FailureKind::Denied if !self.buffer_statuses.denied => {
                self.buffer_statuses.denied = true;
                self.buffer_statuses.written.clear();
                let why = "the status of CapacityBuffers may not be written";
                self.withdraw(why, |own| matches!(own, Command::PatchBuffer(_)), now);
            }
            // Another version is about to be read, or the API takes no status.
            FailureKind::Conflict | FailureKind::Gone | FailureKind::Invalid => {}
            FailureKind::Denied | FailureKind::Withdrawn => {
                self.buffer_statuses.written.remove(&patch.key);
            }
            FailureKind::Throttled | FailureKind::Unknown => {
                self.buffer_statuses.written.remove(&patch.key);
                self.buffer_statuses.retry.failed(now, &mut self.rng);
            }
        }
    }

    /// Whether the status of CapacityBuffers was to be written and we have no right to.
    pub(super) fn lacks_buffer_status(&self) -> bool {
        self.buffer_statuses.denied
    }
}
