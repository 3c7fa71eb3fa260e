//! Decides whether the cluster state is in sync, and requests what is missing.

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::in_flight::CommandPurpose;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::{NodeName, ObjectKey};
use crate::model::watched_object::{ObjectKind, WatchedObject};
use crate::state::node_claims::LISTING_APART;

/// Interval between listings of instances while no claim is in progress.
const LISTING_IDLE: SignedDuration = SignedDuration::from_secs(60);

/// A listing older than this is stale.
const LISTING_AGE_MAX: SignedDuration = SignedDuration::from_secs(180);

/// After a fault the cluster state must be complete for this long before decisions resume.
const QUIET: SignedDuration = SignedDuration::from_secs(5);

/// After a shorter gap, earlier observations remain valid: everything was listed again.
const SHORT_GAP: SignedDuration = SignedDuration::from_mins(1);

/// Maximum number of probed objects when a listing lacks many. Eight probes detect a listing that
/// wrongly lacks a tenth of the objects more often than not.
const PROBES_MAX: usize = 8;

/// Pods bound to unknown nodes are normal for this long, because two watches are not in step.
const UNKNOWN_MAX: SignedDuration = SignedDuration::from_secs(3);

/// Places count only if the watches of pods and nodes showed activity within this time. Watches
/// show activity about every 10 s, and the runtime checks every 2 s.
const RECENT_MAX: SignedDuration = SignedDuration::from_secs(15);

impl Engine {
    /// Replaces all objects of a kind by a listing.
    pub(super) fn apply_listing(
        &mut self,
        kind: ObjectKind,
        objects: Vec<WatchedObject>,
        now: Timestamp,
    ) {
        let before = self.state.cluster_uid();
        let mut known = self.state.objects.object_count(kind);
        let mut vanished = self.state.objects.reset(kind, objects, now);
        // Objects that are missing from both an earlier incomplete listing and this one are still
        // in doubt.
        let doubted = self.looking.doubts.remove(&kind).unwrap_or_default();
        known += doubted.len();
        let doubted = doubted.into_iter();
        vanished.extend(doubted.filter(|(key, _)| !self.state.objects.contains_object(kind, key)));
        let count = vanished.len();
        let probed = matches!(kind, ObjectKind::Pod | ObjectKind::Node);
        if self.state.views.record_listing(kind, known, count, now) && probed {
            self.looking.doubts.insert(kind, vanished);
        } else {
            self.looking.probing.remove(&kind);
            self.state.views.mark_complete(kind);
        }
        *self.looking.resets.entry(kind).or_insert(0) += 1;
        self.check_cluster_uid(before);
    }

    /// Suspends or resumes decisions, and requests missing listings.
    pub(super) fn check_sync(&mut self, now: Timestamp) {
        self.list_instances(now);
        self.check_unknown_nodes(now);
        self.probe_missing_objects(now);
        self.restart_doubted_watches(now);
        self.check_identity(now);
        let fault = self.sync_fault(now);
        match fault {
            Some(why) => {
                self.looking.whole_since = None;
                if self.looking.ready && self.looking.frozen.is_none() {
                    self.push_report(Report::Frozen(why));
                    self.looking.frozen = Some(now);
                    let why = "cluster state is out of sync";
                    self.cancel_queued(why, |command| !command.is_read_only());
                }
            }
            None => self.on_state_complete(now),
        }
        let silence_max = self.state.cluster.api.silence_max();
        let stale_at = self.state.views.next_stale(now, silence_max);
        self.wake_at(stale_at, "a watch may be stale");
    }

    /// Returns why the cluster state is incomplete, if it is.
    pub(super) fn sync_fault(&self, now: Timestamp) -> Option<String> {
        let listed = self.state.ledger.listed_at();
        let stale = listed.is_none_or(|at| now.duration_since(at) > LISTING_AGE_MAX);
        let cluster = &self.state.cluster;
        let views = &self.state.views;
        let mismatch = self.looking.mismatch.as_ref().map(ToString::to_string);
        let clock_skew = self.looking.clock_skew.as_ref().map(ToString::to_string);
        clock_skew
            .or(mismatch)
            .or_else(|| views.sync_fault(cluster.watched_kinds(), now, cluster.api.silence_max()))
            .or_else(|| self.looking.listing_fault.clone())
            .or_else(|| {
                (!self.state.ledger.is_settled())
                    .then(|| "two consecutive listings of instances do not agree yet".to_owned())
            })
            .or_else(|| stale.then(|| "the listing of instances is stale".to_owned()))
            .or_else(|| {
                (!self.looking.ready && self.looking.unknown_since.is_some())
                    .then(|| "pods are bound to unknown nodes".to_owned())
            })
    }

    /// Returns a message about information that plans need and that is missing. `None` if nothing
    /// is missing.
    pub fn missing_information(&self, now: Timestamp) -> Option<String> {
        if !self.is_ready() {
            let unlisted = self.looking.listing_failed.clone();
            let fault = unlisted.or_else(|| self.sync_fault(now));
            return Some(
                fault.unwrap_or_else(|| "cluster state was out of sync until now".to_owned()),
            );
        }
        let unasked = self.state.awaits_classes();
        let unasked = unasked.then(|| "node classes have not been resolved yet".to_owned());
        let unread = self.unread_until(now);
        let unread =
            unread.map(|_| "the CapacityBuffers of the cluster have not been read".to_owned());
        self.state.notes.fault.clone().or(unasked).or(unread)
    }

    fn on_state_complete(&mut self, now: Timestamp) {
        if !self.looking.ready {
            self.looking.ready = true;
            self.looking.thawed = Some(now);
            self.state.started = Some(now);
            self.push_report(Report::Ready);
            return;
        }
        let Some(frozen) = self.looking.frozen else {
            return;
        };
        let since = *self.looking.whole_since.get_or_insert(now);
        let thaw = since.checked_add(QUIET).unwrap_or(now);
        if thaw <= now {
            self.looking.frozen = None;
            self.looking.whole_since = None;
            self.looking.thawed = Some(now);
            if now.duration_since(frozen) > SHORT_GAP {
                self.looking.gap = Some(now);
            }
            self.state.ledger.skip_suspended_time(frozen, now);
            self.push_report(Report::Thawed);
        } else {
            self.wake_at(thaw, "the cluster state has been complete for long enough");
        }
    }

    /// Lists instances, or sets the timer for the next listing.
    pub(super) fn list_instances(&mut self, now: Timestamp) {
        let moving = !self.state.ledger.is_settled()
            || self.looking.listing_fault.is_some()
            || self.adopting.awaits_listing()
            || self.awaits_missing_nodes()
            || self.state.ledger.claims.values().any(|claim| match claim.phase {
                ClaimPhase::Launching | ClaimPhase::Terminating => true,
                ClaimPhase::Launched => self.awaits_partition(claim),
                _ => false,
            });
        let wait = if moving { LISTING_APART } else { LISTING_IDLE };
        let listed = self.state.ledger.listed_at();
        let last = self.looking.listing_asked.max(listed);
        let due = last.map_or(now, |at| at.checked_add(wait).unwrap_or(now));
        if self.looking.listing {
            return;
        }
        if due <= now {
            self.looking.listing = true;
            self.looking.listing_asked = Some(now);
            self.queue_command(Command::ListInstances, CommandPurpose::Listing, now);
        } else {
            self.wake_at(due, "list instances");
        }
    }

    /// Handles pods bound to nodes that the watch does not show: the watch is incomplete.
    fn check_unknown_nodes(&mut self, now: Timestamp) {
        let unknown: Vec<(ObjectKey, String)> = self
            .state
            .objects
            .unknown_nodes()
            .filter(|name| !self.looking.gone_nodes.contains(*name))
            .take(PROBES_MAX)
            .map(|name| (ObjectKey::new("", name.as_str()), String::new()))
            .collect();
        if unknown.is_empty() {
            self.looking.unknown_since = None;
            return;
        }
        let since = *self.looking.unknown_since.get_or_insert(now);
        let due = since.checked_add(UNKNOWN_MAX).unwrap_or(now);
        if due > now {
            self.wake_at(due, "pods are bound to unknown nodes");
        } else {
            self.looking.doubts.entry(ObjectKind::Node).or_insert(unknown);
        }
    }

    /// Returns whether the cluster state is recent enough to evict pods that rely on capacity
    /// elsewhere. A stalled watch is tolerated longer for everything that disrupts no pod. If it is
    /// not recent, the next activity of the watch starts a pass.
    pub(super) fn are_watches_recent(&mut self, now: Timestamp) -> bool {
        let recent = [ObjectKind::Pod, ObjectKind::Node]
            .into_iter()
            .all(|kind| self.state.views.is_recent(kind, now, RECENT_MAX));
        self.looking.awaits_sign |= !recent;
        recent
    }

    fn probe_missing_objects(&mut self, now: Timestamp) {
        for kind in [ObjectKind::Pod, ObjectKind::Node] {
            let Some(objects) = self.looking.doubts.get(&kind) else {
                continue;
            };
            let mut flights = self.flights.values();
            let is_asked = flights.any(|purpose| purpose.kind == CommandPurpose::Probe(kind));
            let retry = self.looking.probing.entry(kind).or_default();
            if is_asked {
                continue;
            }
            if let Some(at) = retry.next_attempt().filter(|at| *at > now) {
                self.wake_at(at, "probe an incomplete listing");
                continue;
            }
            let stride = objects.len().div_ceil(PROBES_MAX).max(1);
            let sample: Vec<_> = objects.iter().step_by(stride).cloned().collect();
            let listings = self.looking.listing_count(kind);
            self.looking.probes.insert(kind, (listings, sample.clone()));
            let probe = Command::Probe { kind, objects: sample };
            self.queue_command(probe, CommandPurpose::Probe(kind), now);
        }
    }

    /// Restarts an incomplete watch. The request is repeated until a listing arrives, because it
    /// may be lost.
    fn restart_doubted_watches(&mut self, now: Timestamp) {
        for kind in [ObjectKind::Pod, ObjectKind::Node] {
            let mut flights = self.flights.values();
            let is_asked = flights.any(|purpose| purpose.kind == CommandPurpose::Rewatch(kind));
            let is_probed = self.looking.doubts.contains_key(&kind);
            if is_asked || is_probed || !self.state.views.is_incomplete(kind) {
                continue;
            }
            let retry = self.looking.probing.entry(kind).or_default();
            if let Some(at) = retry.next_attempt().filter(|at| *at > now) {
                self.wake_at(at, "restart a watch with incomplete data");
                continue;
            }
            retry.record_failure(now, &mut self.rng);
            self.restart_watch(kind, now);
        }
    }

    /// Requests a new listing of a kind.
    pub(super) fn restart_watch(&mut self, kind: ObjectKind, now: Timestamp) {
        let command = Command::Rewatch { kind };
        self.queue_command(command, CommandPurpose::Rewatch(kind), now);
    }

    /// Handles a probe. If the objects exist, the watch is restarted; if not, the listing is
    /// accepted.
    pub(super) fn on_probe_result(
        &mut self,
        kind: ObjectKind,
        alive: Option<usize>,
        now: Timestamp,
    ) {
        let asked = self.looking.probes.remove(&kind);
        let asked = asked.filter(|(listings, _)| *listings == self.looking.listing_count(kind));
        match (alive, asked) {
            // A later listing may lack other objects: the next probe checks those.
            (Some(0), None) => {}
            (Some(0), Some((_, gone))) => {
                self.looking.doubts.remove(&kind);
                if kind == ObjectKind::Node {
                    let names = gone.into_iter().map(|(key, _)| NodeName::from(key.name));
                    self.looking.gone_nodes.extend(names);
                }
                self.looking.probing.remove(&kind);
                self.state.views.mark_complete(kind);
            }
            (alive, _) => {
                if alive.is_some() {
                    self.state.views.mark_incomplete(kind);
                    self.restart_watch(kind, now);
                }
                let retry = self.looking.probing.entry(kind).or_default();
                retry.record_failure(now, &mut self.rng);
            }
        }
    }
}
