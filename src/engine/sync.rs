//! Decides whether the cluster state is in sync, and requests what is missing.

use jiff::{SignedDuration, Timestamp};

use crate::engine::claims;
use crate::engine::cluster_identity;
use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::controllers::Unclaimed;
use crate::engine::in_flight::CommandPurpose;
use crate::engine::report::Report;
use crate::engine::sync_state::SyncPhase;
use crate::engine::undrained_terminations;
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

/// Maximum number of probed objects when a listing lacks many. If a listing wrongly lacks a tenth
/// of the objects, eight probes detect it in more than half of the cases.
const PROBES_MAX: usize = 8;

/// Pods bound to unknown nodes are normal for this long, because the watches of pods and nodes are
/// not synchronized.
const UNKNOWN_MAX: SignedDuration = SignedDuration::from_secs(3);

/// Planned places are valid only if the watches of pods and nodes showed activity within this time.
/// Watches show activity about every 10 s, and the runtime checks every 2 s.
const RECENT_MAX: SignedDuration = SignedDuration::from_secs(15);

impl Context {
    /// Returns a message about information that plans need and that is missing. `None` if nothing
    /// is missing.
    pub(super) fn missing_information(&self, now: Timestamp) -> Option<String> {
        if !self.is_ready() {
            let unlisted = self.sync.listing_failed.clone();
            let fault = unlisted.or_else(|| sync_fault(self, now));
            return Some(
                fault.unwrap_or_else(|| "cluster state was out of sync until now".to_owned()),
            );
        }
        let unasked = self.state.awaits_classes();
        let unasked = unasked.then(|| "node classes have not been resolved yet".to_owned());
        let unread = keeps_empty_until(self, now);
        let unread =
            unread.map(|_| "the CapacityBuffers of the cluster have not been read".to_owned());
        self.state.notes.fault.clone().or(unasked).or(unread)
    }
}

/// Replaces all objects of a kind by a listing.
pub(super) fn apply_listing(
    cx: &mut Context,
    kind: ObjectKind,
    objects: Vec<WatchedObject>,
    now: Timestamp,
) {
    let before = cx.state.cluster_uid();
    let mut known = cx.state.objects.object_count(kind);
    let mut vanished = cx.state.objects.reset(kind, objects, now);
    // Objects that are missing from both an earlier incomplete listing and this one are still
    // in doubt.
    let doubted = cx.sync.doubts.remove(&kind).unwrap_or_default();
    known += doubted.len();
    let doubted = doubted.into_iter();
    vanished.extend(doubted.filter(|(key, _)| !cx.state.objects.contains_object(kind, key)));
    let count = vanished.len();
    let probed = matches!(kind, ObjectKind::Pod | ObjectKind::Node);
    if cx.state.views.record_listing(kind, known, count, now) && probed {
        cx.sync.doubts.insert(kind, vanished);
    } else {
        cx.sync.probing.remove(&kind);
        cx.state.views.mark_complete(kind);
    }
    *cx.sync.resets.entry(kind).or_insert(0) += 1;
    cluster_identity::check_cluster_uid(cx, before);
}

/// Suspends or resumes decisions, and requests missing listings.
pub(super) fn check_sync(cx: &mut Context, unclaimed: &Unclaimed, now: Timestamp) {
    list_instances(cx, unclaimed, now);
    check_unknown_nodes(cx, now);
    probe_missing_objects(cx, now);
    restart_doubted_watches(cx, now);
    cluster_identity::check_identity(cx, now);
    let fault = sync_fault(cx, now);
    match fault {
        Some(why) => on_state_incomplete(cx, why, now),
        None => on_state_complete(cx, now),
    }
    let silence_max = cx.state.cluster.api.silence_max();
    let stale_at = cx.state.views.next_stale(now, silence_max);
    cx.outbox.wake_at(stale_at, "a watch may be stale");
}

/// Returns why the cluster state is incomplete, if it is.
pub(super) fn sync_fault(cx: &Context, now: Timestamp) -> Option<String> {
    let listed = cx.state.ledger.listed_at();
    let stale = listed.is_none_or(|at| now.duration_since(at) > LISTING_AGE_MAX);
    let cluster = &cx.state.cluster;
    let views = &cx.state.views;
    let mismatch = cx.sync.mismatch.as_ref().map(ToString::to_string);
    let clock_skew = cx.sync.clock_skew.as_ref().map(ToString::to_string);
    clock_skew
        .or(mismatch)
        .or_else(|| views.sync_fault(cluster.watched_kinds(), now, cluster.api.silence_max()))
        .or_else(|| cx.sync.listing_fault.clone())
        .or_else(|| {
            (!cx.state.ledger.is_settled())
                .then(|| "two consecutive listings of instances do not agree yet".to_owned())
        })
        .or_else(|| stale.then(|| "the listing of instances is stale".to_owned()))
        .or_else(|| {
            (cx.sync.phase == SyncPhase::Starting && cx.sync.unknown_since.is_some())
                .then(|| "pods are bound to unknown nodes".to_owned())
        })
}

/// Suspends decisions until the cluster state has been complete for [`QUIET`].
fn on_state_incomplete(cx: &mut Context, why: String, now: Timestamp) {
    match &mut cx.sync.phase {
        SyncPhase::Starting => {}
        SyncPhase::Ready => {
            cx.sync.phase = SyncPhase::OutOfSync { since: now, complete_since: None };
            cx.outbox.push_report(Report::Frozen(why));
            let why = "cluster state is out of sync";
            cx.outbox.cancel_queued(why, |command| !command.is_read_only());
        }
        SyncPhase::OutOfSync { complete_since, .. } => *complete_since = None,
    }
}

/// Starts or resumes decisions.
fn on_state_complete(cx: &mut Context, now: Timestamp) {
    match cx.sync.phase {
        SyncPhase::Starting => {
            (cx.sync.phase, cx.sync.thawed) = (SyncPhase::Ready, Some(now));
            cx.state.started = Some(now);
            cx.outbox.push_report(Report::Ready);
        }
        SyncPhase::Ready => {}
        SyncPhase::OutOfSync { since, complete_since } => {
            let complete_since = Some(complete_since.unwrap_or(now));
            let resumes = complete_since.and_then(|at| at.checked_add(QUIET).ok()).unwrap_or(now);
            if resumes > now {
                cx.sync.phase = SyncPhase::OutOfSync { since, complete_since };
                let why = "the cluster state has been complete for long enough";
                cx.outbox.wake_at(resumes, why);
                return;
            }
            (cx.sync.phase, cx.sync.thawed) = (SyncPhase::Ready, Some(now));
            if now.duration_since(since) > SHORT_GAP {
                cx.sync.gap = Some(now);
            }
            cx.state.ledger.skip_suspended_time(since, now);
            cx.outbox.push_report(Report::Thawed);
        }
    }
}

/// Lists instances, or sets the timer for the next listing.
pub(super) fn list_instances(cx: &mut Context, unclaimed: &Unclaimed, now: Timestamp) {
    let moving = !cx.state.ledger.is_settled()
        || cx.sync.listing_fault.is_some()
        || unclaimed.adoption.awaits_listing()
        || undrained_terminations::awaits_missing_nodes(cx)
        || cx.state.ledger.claims.values().any(|claim| match claim.phase {
            ClaimPhase::Launching | ClaimPhase::Terminating => true,
            ClaimPhase::Launched => claims::awaits_partition(cx, claim),
            _ => false,
        });
    let wait = if moving { LISTING_APART } else { LISTING_IDLE };
    let listed = cx.state.ledger.listed_at();
    let last = cx.sync.listing_asked.max(listed);
    let due = last.map_or(now, |at| at.checked_add(wait).unwrap_or(now));
    if cx.sync.listing {
        return;
    }
    if due <= now {
        cx.sync.listing = true;
        cx.sync.listing_asked = Some(now);
        cx.outbox.queue_command(Command::ListInstances, CommandPurpose::Listing, now);
    } else {
        cx.outbox.wake_at(due, "list instances");
    }
}

/// Handles pods bound to nodes that the watch does not show: the watch is incomplete.
fn check_unknown_nodes(cx: &mut Context, now: Timestamp) {
    let unknown: Vec<(ObjectKey, String)> = cx
        .state
        .objects
        .unknown_nodes()
        .filter(|name| !cx.sync.gone_nodes.contains(*name))
        .take(PROBES_MAX)
        .map(|name| (ObjectKey::new("", name.as_str()), String::new()))
        .collect();
    if unknown.is_empty() {
        cx.sync.unknown_since = None;
        return;
    }
    let since = *cx.sync.unknown_since.get_or_insert(now);
    let due = since.checked_add(UNKNOWN_MAX).unwrap_or(now);
    if due > now {
        cx.outbox.wake_at(due, "pods are bound to unknown nodes");
    } else {
        cx.sync.doubts.entry(ObjectKind::Node).or_insert(unknown);
    }
}

/// Returns whether the cluster state is recent enough to evict pods that rely on capacity of other
/// nodes. For decisions that disrupt no pod, a stalled watch is tolerated for longer. If the state
/// is not recent, the next activity of the watch starts a pass.
pub(super) fn are_watches_recent(cx: &mut Context, now: Timestamp) -> bool {
    let recent = [ObjectKind::Pod, ObjectKind::Node]
        .into_iter()
        .all(|kind| cx.state.views.is_recent(kind, now, RECENT_MAX));
    cx.sync.awaits_sign |= !recent;
    recent
}

fn probe_missing_objects(cx: &mut Context, now: Timestamp) {
    for kind in [ObjectKind::Pod, ObjectKind::Node] {
        let Some(objects) = cx.sync.doubts.get(&kind) else {
            continue;
        };
        let mut in_flight = cx.outbox.in_flight.values();
        let is_asked = in_flight.any(|command| command.kind == CommandPurpose::Probe(kind));
        let retry = cx.sync.probing.entry(kind).or_default();
        if is_asked {
            continue;
        }
        if let Some(at) = retry.next_attempt().filter(|at| *at > now) {
            cx.outbox.wake_at(at, "probe an incomplete listing");
            continue;
        }
        let stride = objects.len().div_ceil(PROBES_MAX).max(1);
        let sample: Vec<_> = objects.iter().step_by(stride).cloned().collect();
        let listings = cx.sync.listing_count(kind);
        cx.sync.probes.insert(kind, (listings, sample.clone()));
        let probe = Command::Probe { kind, objects: sample };
        cx.outbox.queue_command(probe, CommandPurpose::Probe(kind), now);
    }
}

/// Restarts an incomplete watch. The request is repeated until a listing arrives, because it
/// may be lost.
fn restart_doubted_watches(cx: &mut Context, now: Timestamp) {
    for kind in [ObjectKind::Pod, ObjectKind::Node] {
        let mut in_flight = cx.outbox.in_flight.values();
        let is_asked = in_flight.any(|command| command.kind == CommandPurpose::Rewatch(kind));
        let is_probed = cx.sync.doubts.contains_key(&kind);
        if is_asked || is_probed || !cx.state.views.is_incomplete(kind) {
            continue;
        }
        let retry = cx.sync.probing.entry(kind).or_default();
        if let Some(at) = retry.next_attempt().filter(|at| *at > now) {
            cx.outbox.wake_at(at, "restart a watch with incomplete data");
            continue;
        }
        retry.record_failure(now, &mut cx.rng);
        restart_watch(cx, kind, now);
    }
}

/// Requests a new listing of a kind.
pub(super) fn restart_watch(cx: &mut Context, kind: ObjectKind, now: Timestamp) {
    let command = Command::Rewatch { kind };
    cx.outbox.queue_command(command, CommandPurpose::Rewatch(kind), now);
}

/// Handles a probe. If the objects exist, the watch is restarted; if not, the listing is
/// accepted.
pub(super) fn on_probe_result(
    cx: &mut Context,
    kind: ObjectKind,
    alive: Option<usize>,
    now: Timestamp,
) {
    let asked = cx.sync.probes.remove(&kind);
    let asked = asked.filter(|(listings, _)| *listings == cx.sync.listing_count(kind));
    match (alive, asked) {
        // A later listing may lack other objects: the next probe checks those.
        (Some(0), None) => {}
        (Some(0), Some((_, gone))) => {
            cx.sync.doubts.remove(&kind);
            if kind == ObjectKind::Node {
                let names = gone.into_iter().map(|(key, _)| NodeName::from(key.name));
                cx.sync.gone_nodes.extend(names);
            }
            cx.sync.probing.remove(&kind);
            cx.state.views.mark_complete(kind);
        }
        (alive, _) => {
            if alive.is_some() {
                cx.state.views.mark_incomplete(kind);
                restart_watch(cx, kind, now);
            }
            let retry = cx.sync.probing.entry(kind).or_default();
            retry.record_failure(now, &mut cx.rng);
        }
    }
}

/// Buffers are read within seconds after a start. If reading them fails for this long, empty nodes
/// are disrupted without this information, because they cost money.
pub(super) const UNREAD_MAX: SignedDuration = SignedDuration::from_mins(5);

/// Returns until when empty nodes are kept because the buffers that may need them have not been
/// read yet.
pub(super) fn keeps_empty_until(cx: &Context, now: Timestamp) -> Option<Timestamp> {
    let started = cx.state.started.filter(|_| cx.state.declared.is_none());
    let until = started.and_then(|at| at.checked_add(UNREAD_MAX).ok());
    until.filter(|until| *until > now)
}
