//! Waits for the volumes of a drained node to be detached before the instance is terminated.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::{Command, FailureKind};
use crate::engine::in_flight::ClaimStep;
use crate::model::id::{ClaimId, NodeName, ObjectKey};
use crate::model::watched_object::Attachment;

/// Maximum wait for volumes without a deadline. After this time Kubernetes detaches the volumes of
/// an unresponsive node (maxWaitForUnmountDuration of the attach/detach controller). The reason for
/// a limit is in docs/decisions/022-termination-of-a-node.md.
const DETACH_MAX: SignedDuration = SignedDuration::from_mins(6);

/// Minimum interval between listings of a node's attachments from the API server.
const LIST_APART: SignedDuration = SignedDuration::from_secs(5);

impl Engine {
    /// Returns whether the wait for the volumes of a drained node is over: none is attached, or the
    /// time is up. If the pods had no volumes, the API server is not called.
    pub(crate) fn is_detached(&mut self, id: &ClaimId, node: &NodeName, now: Timestamp) -> bool {
        let detach = self.works.get(id).map(|progress| &progress.drain.detach);
        if self.state.objects.volumes.is_empty() || detach.is_some_and(|detach| detach.over) {
            return true;
        }
        let until = {
            let drain = &mut self.works.entry(id.clone()).or_default().drain;
            let (since, deadline) = (*drain.detach.since.get_or_insert(now), drain.deadline);
            deadline.unwrap_or_else(|| self.condition_deadline(since, DETACH_MAX))
        };
        if until <= now {
            self.report_forced_drain(id, node, now);
            self.progress_of(id).drain.detach.over = true;
            return true;
        }
        self.report_blocked_drain(id, node, now);
        let detach = &mut self.works.entry(id.clone()).or_default().drain.detach;
        let next = detach.next_list.filter(|at| *at > now);
        if next.is_none() {
            detach.next_list = now.checked_add(LIST_APART).ok();
            let node = node.clone();
            let list = Command::ListAttachments { node };
            self.send_step(id, ClaimStep::ListAttachments, list, now);
        }
        let wake = next.map_or(until, |at| at.min(until));
        self.wake_at(wake, "volumes should be detached by now");
        false
    }

    /// Handles a listing of a node's attachments.
    pub(crate) fn on_attachments_listed(
        &mut self,
        id: &ClaimId,
        attachments: Vec<Attachment>,
        now: Timestamp,
    ) {
        let node = self.claim(id).and_then(|claim| claim.node.as_ref());
        let kept = node.map_or_else(BTreeSet::new, |node| self.volumes_kept(node, now));
        let remaining: Vec<Attachment> = attachments
            .into_iter()
            .filter(|attachment| {
                !attachment.volume.is_empty() && !kept.contains(&attachment.volume)
            })
            .collect();
        if let Some(progress) = self.works.get_mut(id) {
            progress.retry = Default::default();
            progress.drain.detach.over = remaining.is_empty();
            progress.drain.detach.left = remaining;
        }
    }

    /// Handles a failed listing of attachments. If the permission is missing, it is reported and
    /// the termination does not wait. Other failures are retried.
    pub(crate) fn on_attachments_failed(
        &mut self,
        id: &ClaimId,
        kind: FailureKind,
        now: Timestamp,
    ) {
        if let Some(progress) = self.works.get_mut(id) {
            progress.drain.detach.over |= kind == FailureKind::Denied;
            progress.retry.record_failure(now, &mut self.rng);
        }
    }

    /// Returns the volumes of pods that run until the node is terminated: nothing detaches them
    /// before.
    fn volumes_kept(&self, node: &NodeName, now: Timestamp) -> BTreeSet<String> {
        let pods = self.state.objects.pods_on(node.as_str());
        let pods = pods.filter(|pod| pod.runs_until_termination(now) && !pod.is_terminal());
        let claims = pods.flat_map(|pod| {
            let namespace = pod.key.namespace.as_str();
            let names = pod.volume_claims.iter();
            names.map(move |name| ObjectKey::new(namespace, name.as_str()))
        });
        let claims = claims.filter_map(|key| self.state.objects.volume_claims.get(&key));
        claims.map(|claim| claim.volume.clone()).collect()
    }
}
