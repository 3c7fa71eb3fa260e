//! How long the end of a drained instance waits for its volumes to be detached.
//! It must not know how its pods were moved, nor how the instance is ended.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::{Command, FailureKind};
use crate::engine::in_flight::ClaimStep;
use crate::model::id::{ClaimId, NodeName, ObjectKey};
use crate::model::watched_object::Attachment;

/// Without a deadline volumes are waited for so long: after this time Kubernetes itself takes a
/// volume off a node that does not answer (maxWaitForUnmountDuration of the attach/detach
/// controller). Why not for ever: docs/decisions/022-ending-a-node.md.
const DETACH_MAX: SignedDuration = SignedDuration::from_mins(6);

/// The API server is asked for the attachments of a node at most this often.
const LIST_APART: SignedDuration = SignedDuration::from_secs(5);

impl Engine {
    /// Whether a drained node's volumes are waited for no more: none is attached, or their time is
    /// up. Where there are no volumes at all, nobody is asked.
    pub(crate) fn is_detached(&mut self, id: &ClaimId, node: &NodeName, now: Timestamp) -> bool {
        let detach = self.works.get(id).map(|own| &own.drain.detach);
        if self.state.objects.volumes.is_empty() || detach.is_some_and(|own| own.over) {
            return true;
        }
        let until = {
            let drain = &mut self.works.entry(id.clone()).or_default().drain;
            let (since, deadline) = (*drain.detach.since.get_or_insert(now), drain.deadline);
            deadline.unwrap_or_else(|| self.deadline(since, DETACH_MAX))
        };
        if until <= now {
            self.tell_forced(id, node, now);
            self.works.entry(id.clone()).or_default().drain.detach.over = true;
            return true;
        }
        self.tell_held(id, node, now);
        let detach = &mut self.works.entry(id.clone()).or_default().drain.detach;
        let next = detach.next_list.filter(|at| *at > now);
        if next.is_none() {
            detach.next_list = now.checked_add(LIST_APART).ok();
            let node = node.clone();
            let list = Command::ListAttachments { node };
            self.step(id, ClaimStep::ListAttachments, list, now);
        }
        let wake = next.map_or(until, |at| at.min(until));
        self.wake_at(wake, "volumes are to be detached");
        false
    }

    /// What is attached to a node was listed.
    pub(crate) fn attachments_listed(
        &mut self,
        id: &ClaimId,
        all: Vec<Attachment>,
        now: Timestamp,
    ) {
        let claim = self.state.ledger.claims.get(id);
        let node = claim.and_then(|own| own.node.as_ref());
        let kept = node.map_or_else(BTreeSet::new, |node| self.volumes_kept(node, now));
        let counts = |own: &Attachment| !own.volume.is_empty() && !kept.contains(&own.volume);
        let left: Vec<Attachment> = all.into_iter().filter(counts).collect();
        if let Some(work) = self.works.get_mut(id) {
            work.retry = Default::default();
            work.drain.detach.over = left.is_empty();
            work.drain.detach.left = left;
        }
    }

    /// Attachments could not be listed. Who may not list them is told so, and the end does not wait
    /// for what cannot be seen; everything else is tried again.
    pub(crate) fn attachments_unknown(&mut self, id: &ClaimId, kind: FailureKind, now: Timestamp) {
        if let Some(work) = self.works.get_mut(id) {
            work.drain.detach.over |= kind == FailureKind::Denied;
            work.retry.failed(now, &mut self.rng);
        }
    }

    /// The volumes of pods that go down with their node: nobody will detach them before.
    fn volumes_kept(&self, node: &NodeName, now: Timestamp) -> BTreeSet<String> {
        let pods = self.state.objects.pods_on(node.as_str());
        let pods = pods.filter(|pod| pod.stays_to_the_end(now) && !pod.is_terminal());
        let claims = pods.flat_map(|pod| {
            let namespace = pod.key.namespace.as_str();
            let names = pod.volume_claims.iter();
            names.map(move |name| ObjectKey::new(namespace, name.as_str()))
        });
        let claims = claims.filter_map(|key| self.state.objects.volume_claims.get(&key));
        claims.map(|own| own.volume.clone()).collect()
    }
}
