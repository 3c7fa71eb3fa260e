//! Performs the next step of each claim, from Planned to Gone, and applies the timeouts.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::claim_steps;
use crate::engine::claims;
use crate::engine::claims::finalizer_removal_patch;
use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::controllers::{Consolidation, Interruptions, Nominations};
use crate::engine::drain;
use crate::engine::drain::deadline;
use crate::engine::early_binding::EarlyBinding;
use crate::engine::early_ends;
use crate::engine::fleet_sync::FleetSync;
use crate::engine::in_flight::ClaimStep;
use crate::engine::offering_probe;
use crate::engine::registration;
use crate::engine::report::Report;
use crate::engine::undrained_terminations;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, NodeName};
use crate::model::instance::InstanceState;
use crate::model::labels::TAINT_UNREGISTERED;
use crate::model::node::Node;
use crate::model::pool::{Pool, Reason};
use crate::model::taint::{Effect, Taint};
use crate::provider::Launch;
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot_builder::node_labels;

/// A launch without an answer may have created an instance. The launch is retried with its client
/// token for this long after its timeout.
const UNSURE_MAX: SignedDuration = SignedDuration::from_mins(10);

/// A pod listing from the API server is valid for this long for a termination.
const CONFIRMED_MAX: SignedDuration = SignedDuration::from_secs(15);
/// Maximum time until a command is sent. It is somewhat longer than a rate-limited call can wait in
/// its queue.
const SENT_MAX: SignedDuration = SignedDuration::from_secs(30);

/// EC2 terminates instances within minutes. Longer terminations are reported after this time.
const LINGERS_AFTER: SignedDuration = SignedDuration::from_mins(10);

impl Engine {
    /// Returns the latest time at which a command may be sent. After that its decision is outdated.
    /// A termination must be sent before the confirmation of its drain is too old.
    pub fn latest_send_time(&self, command: &Command, now: Timestamp) -> Timestamp {
        let (from, span) = match command {
            Command::Terminate { claim, .. } => {
                let claim = self.cx.claim(claim);
                let relied_on = claim.and_then(|claim| required_confirmation(&self.cx, claim, now));
                (relied_on.flatten().unwrap_or(now), CONFIRMED_MAX)
            }
            _ => (now, SENT_MAX),
        };
        from.checked_add(span).unwrap_or(now)
    }
}

/// Performs the possible steps of each claim. While the cluster state is out of sync, only claims
/// whose instances the provider reclaims proceed, because their time is limited.
pub(super) fn advance_claims(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    nominations: &Nominations,
    early_binding: &mut EarlyBinding,
    fleet: &mut FleetSync,
    interruptions: &Interruptions,
    now: Timestamp,
) {
    cancel_outdated_terminations(cx, now);
    let whole = cx.is_ready();
    let claims = cx.state.ledger.claims.iter();
    let ids: Vec<ClaimId> = claims
        .filter(|(_, claim)| whole || claim.leaving == Some(Reason::Interrupted))
        .map(|(id, _)| id.clone())
        .collect();
    for id in ids {
        if !may_advance(cx, interruptions, &id, now) {
            continue;
        }
        let Some(claim) = cx.claim(&id) else {
            continue;
        };
        match claim.phase {
            ClaimPhase::Planned | ClaimPhase::Launching => launch_claim(cx, fleet, &id, now),
            ClaimPhase::Launched => registration::check_registration(
                cx,
                consolidation,
                nominations,
                early_binding,
                interruptions,
                &id,
                now,
            ),
            ClaimPhase::Registered => registration::check_initialization(
                cx,
                consolidation,
                nominations,
                interruptions,
                &id,
                now,
            ),
            ClaimPhase::Initialized => {
                registration::check_initialized_node(cx, interruptions, &id, now)
            }
            ClaimPhase::Draining if cx.is_managing() => {
                drain::drain(cx, consolidation, nominations, fleet, interruptions, &id, now)
            }
            ClaimPhase::Terminating if cx.is_managing() => {
                terminate_instance(cx, early_binding, interruptions, &id, now)
            }
            // A claim that is gone is forgotten in the same step.
            ClaimPhase::Draining | ClaimPhase::Terminating | ClaimPhase::Gone => {}
        }
    }
    cx.progress.retain(|id, _| cx.state.ledger.claims.contains_key(id));
}

/// Returns whether the next step of a claim is possible: none is in flight, and no retry is
/// awaited. A claim whose instance has ended is terminated first.
fn may_advance(
    cx: &mut Context,
    interruptions: &Interruptions,
    id: &ClaimId,
    now: Timestamp,
) -> bool {
    let progress = cx.progress.entry(id.clone()).or_default();
    if progress.step.is_some() {
        return false;
    }
    if let Some(at) = progress.retry.next_attempt().filter(|_| !progress.retry.is_due(now)) {
        cx.outbox.wake_at(at, "retry a step of a claim");
        return false;
    }
    let Some(claim) = cx.claim(id) else {
        return false;
    };
    if !has_instance_ended(cx, claim) {
        return true;
    }
    early_ends::on_instance_ended(cx, id, now);
    if let Some(claim) = cx.claim(id).filter(|claim| claim.phase != ClaimPhase::Terminating) {
        let reason = claim.leaving.unwrap_or(Reason::Orphaned);
        claim_steps::terminate_undrained(cx, interruptions, id, reason, now);
    }
    true
}

/// Links Nodes to claims by instance ID.
pub(super) fn join_nodes(cx: &mut Context, early_binding: &mut EarlyBinding, now: Timestamp) {
    if cx.state.ledger.claims.values().all(|claim| {
        let node = cx.node_of(claim);
        claim.instance.is_none() || node.is_some_and(|node| !node.is_awaited())
    }) {
        return;
    }
    let mut found: Vec<(ClaimId, NodeName)> = Vec::new();
    for node in cx.state.objects.nodes.values() {
        let owner = node.instance_id();
        let Some(id) = owner.and_then(|owner| cx.state.ledger.by_instance(owner)) else {
            continue;
        };
        // A kubelet may register with a name different from the expected one.
        let claim = cx.claim(id);
        if claim.is_some_and(|claim| {
            let known = cx.node_of(claim);
            known.is_none_or(|known| known.is_awaited() && !node.is_awaited())
        }) {
            found.push((id.clone(), node.name.clone()));
        }
    }
    for (id, node) in found {
        let awaited = cx.claim(&id).and_then(|claim| cx.node_of(claim));
        if awaited.is_some_and(|awaited| awaited.name != node && awaited.is_awaited()) {
            early_binding.on_unexpected_node_name(cx, &id, now);
        }
        if let Some(claim) = cx.state.ledger.claims.get_mut(&id) {
            claim.node = Some(node);
        }
    }
}

/// Returns whether an instance is certainly gone: the provider reports it, or it is missing
/// from listings and its kubelet is silent.
fn has_instance_ended(cx: &Context, claim: &NodeClaim) -> bool {
    let state = claim.instance.as_ref().map(|instance| instance.state);
    state == Some(InstanceState::Terminated)
        || (claim.instance_is_gone() && cx.node_of(claim).is_none_or(|node| !node.ready))
}

fn launch_claim(cx: &mut Context, fleet: &mut FleetSync, id: &ClaimId, now: Timestamp) {
    let Some(claim) = cx.claim(id) else {
        return;
    };
    if claim.instance.is_some() {
        claim_steps::enter_phase(cx, id, ClaimPhase::Launched, now);
        return;
    }
    let timeout = cx.pool_of(claim).launch_timeout;
    let progress = cx.progress.get(id);
    // A claim whose instance may exist must not be forgotten: a retry or a listing shows it.
    let grace = progress.filter(|progress| progress.unsure).map(|_| UNSURE_MAX);
    let deadline = claims::phase_deadline(cx, claim, timeout + grace.unwrap_or_default());
    if deadline <= now {
        cx.outbox.push_report(Report::Retire {
            claim: id.clone(),
            pool: claim.record.pool.clone(),
            node: None,
            capacity_type: claim.capacity_type(),
            reason: Reason::TimedOut,
            price: None,
            pods: 0,
        });
        claims::forget_claim(cx, id);
        return;
    }
    let is_begun = progress.is_some_and(|progress| progress.launch.is_some() || progress.granted);
    cx.outbox.wake_at(deadline, "a launch is overdue");
    if !is_begun && !offering_probe::narrow_offerings(cx, id, now)
        || fleet.request_grant(cx, id, now)
    {
        return;
    }
    let Some(claim) = cx.claim(id) else {
        return;
    };
    let known = cx.progress.get(id).and_then(|progress| progress.launch.clone());
    let launch = known.unwrap_or_else(|| {
        let pool = cx.pool_of(claim);
        Box::new(launch_of(cx, claim.clone(), &pool))
    });
    if let Some(claim) = cx.state.ledger.claims.get_mut(id) {
        claim.phase = ClaimPhase::Launching;
        claim.devices = Some(launch.devices.clone());
    }
    cx.progress_of(id).launch = Some(launch.clone());
    claim_steps::send_step(cx, id, ClaimStep::Launch, Command::Launch(launch), now);
}

/// Returns the launch request for a claim.
fn launch_of(cx: &Context, claim: NodeClaim, pool: &Pool) -> Launch {
    let labels = node_labels(&claim, pool);
    let mut taints = pool.taints.clone();
    taints.extend(pool.startup_taints.iter().cloned());
    taints.push(Taint::new(TAINT_UNREGISTERED, Effect::NoExecute));
    let tags = Launch::tags_of_new(&cx.state.cluster, &claim.record);
    let pods = claim.pods.iter().filter_map(|key| cx.state.objects.pods.get(key));
    let devices = pods.flat_map(|pod| pod.requests.extended.keys().cloned());
    Launch {
        devices: devices.collect(),
        overlaid: cx.state.is_overlaid(&pool.name),
        varied: pool.is_varied(),
        relaxed: claims::is_relaxed(cx, pool, claim.offerings.iter()),
        claim: claim.record,
        offerings: claim.offerings,
        labels,
        taints,
        tags,
    }
}

fn terminate_instance(
    cx: &mut Context,
    early_binding: &mut EarlyBinding,
    interruptions: &Interruptions,
    id: &ClaimId,
    now: Timestamp,
) {
    let Some(claim) = cx.claim(id) else {
        return;
    };
    let Some(instance) = claim.instance.clone() else {
        claims::forget_claim(cx, id);
        return;
    };
    let runs = is_running(claim);
    if runs && !may_terminate(cx, claim, now) {
        cx.progress_of(id).drain.listing.confirmed = None;
        claim_steps::enter_phase(cx, id, ClaimPhase::Draining, now);
        return;
    }
    let reason = claim.leaving.unwrap_or(Reason::Orphaned);
    if claims::is_ambiguous(cx, claim, reason) {
        return;
    }
    let drained = !instance.state.is_live() || was_drained(cx, id, now);
    if !drained && !undrained_terminations::may_terminate_undrained(cx, interruptions, id, now) {
        return;
    }
    report_slow_termination(cx, id, now);
    let Some(claim) = cx.claim(id) else {
        return;
    };
    // An instance missing from listings is terminated anyway: only the result proves that it is
    // gone.
    let proven = instance.state == InstanceState::Terminated;
    if runs || (claim.instance_is_gone() && !proven) {
        let command = Command::Terminate { claim: id.clone(), instance: instance.id };
        claim_steps::send_step(cx, id, ClaimStep::Terminate, command, now);
        return;
    }
    // The Node is deleted only after the provider has confirmed that the instance is gone.
    if !proven {
        return;
    }
    cx.progress_of(id).terminated.get_or_insert(now);
    let Some(claim) = cx.claim(id) else {
        return;
    };
    let known = cx.node_of(claim);
    if let Some(patch) = known.and_then(finalizer_removal_patch) {
        // The finalizer kept the Node until this confirmation.
        if known.is_some_and(|node| !claims::is_stale(cx, id, node)) {
            claim_steps::send_step(cx, id, ClaimStep::Finalizer, Command::PatchNode(patch), now);
        }
        return;
    }
    let node = known.map(|node| (node.name.clone(), node.uid.clone()));
    match node {
        Some((node, _)) if early_binding.unbind_pods(cx, &node, now) => {}
        Some((node, uid)) if !is_deletion_sent(cx, id, &uid) => {
            cx.sync.gone_nodes.insert(node.clone());
            if let Some(progress) = cx.progress.get_mut(id) {
                progress.removed = Some(uid.clone());
            }
            claim_steps::send_step(
                cx,
                id,
                ClaimStep::DeleteNode,
                Command::DeleteNode { node, uid },
                now,
            );
        }
        Some(_) => {}
        None => {
            cx.state.recent.ended = Some(now);
            claim_steps::enter_phase(cx, id, ClaimPhase::Gone, now);
            claims::forget_claim(cx, id);
        }
    }
}

/// Returns whether the pods of a disrupted node were evicted, or their time is up.
fn was_drained(cx: &Context, id: &ClaimId, now: Timestamp) -> bool {
    let confirmed = cx.drain_of(id).and_then(|drain| drain.listing.confirmed);
    let reason = cx.claim(id).and_then(|claim| claim.leaving);
    confirmed.is_some()
        || (deadline::is_deadline_over(cx, id, now)
            && !reason.is_some_and(Reason::terminates_undrained))
}

/// Reports an instance that does not terminate for a long time.
fn report_slow_termination(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    let claim = cx.claim(id);
    let Some(instance) = claim.and_then(|claim| claim.instance.as_ref()) else {
        return;
    };
    let instance = instance.id.clone();
    let progress = cx.progress.entry(id.clone()).or_default();
    let since = *progress.told_to_end.get_or_insert(now);
    let lingers = &mut progress.lingers;
    let next = lingers.next_report_at(since, LINGERS_AFTER);
    if next > now {
        cx.outbox.wake_at(next, "an instance should be terminated by now");
        return;
    }
    lingers.record_report(now, LINGERS_AFTER);
    cx.outbox.push_report(Report::Lingers {
        claim: id.clone(),
        instance,
        since: now.duration_since(since),
    });
}

fn is_deletion_sent(cx: &Context, id: &ClaimId, uid: &str) -> bool {
    cx.progress.get(id).is_some_and(|progress| progress.removed.as_deref() == Some(uid))
}

/// Returns whether an instance may be terminated now: its node was never untainted, or the
/// drain was confirmed a moment ago and the taint still exists.
fn may_terminate(cx: &Context, claim: &NodeClaim, now: Timestamp) -> bool {
    cx.node_of(claim)
        .filter(|node| claim_steps::may_run_pods(cx, &claim.record.id, node, now))
        .is_none_or(Node::has_disrupted_taint)
        && required_confirmation(cx, claim, now).is_none_or(|confirmed| {
            confirmed.is_some_and(|at| now.duration_since(at) <= CONFIRMED_MAX)
        })
}

/// Returns when the drain was confirmed, if the termination of the instance requires that. The
/// outer `None` means that no confirmation is required: no pods can run on its node, or its
/// deadline has passed. The deadline of an unhealthy node passes immediately, because its kubelet
/// does not respond.
fn required_confirmation(
    cx: &Context,
    claim: &NodeClaim,
    now: Timestamp,
) -> Option<Option<Timestamp>> {
    let id = &claim.record.id;
    let node = cx.node_of(claim)?;
    let relies =
        claim_steps::may_run_pods(cx, id, node, now) && !deadline::is_deadline_over(cx, id, now);
    relies.then(|| cx.drain_of(id).and_then(|drain| drain.listing.confirmed))
}

/// Cancels queued terminations that are no longer permitted: a different client removed the
/// taint, or the confirmation is too old.
fn cancel_outdated_terminations(cx: &mut Context, now: Timestamp) {
    let queued = cx.outbox.commands.iter();
    let terminated = queued.filter_map(|issued| terminated_claim(&issued.command));
    let barred: BTreeSet<ClaimId> = terminated
        .filter(|id| {
            let claim = cx.claim(id);
            claim.is_some_and(|claim| is_running(claim) && !may_terminate(cx, claim, now))
        })
        .cloned()
        .collect();
    if !barred.is_empty() {
        claim_steps::cancel_claim_commands(
            cx,
            |command| terminated_claim(command).is_some_and(|id| barred.contains(id)),
            now,
        );
    }
}

/// Returns the claim whose instance a command terminates.
fn terminated_claim(command: &Command) -> Option<&ClaimId> {
    match command {
        Command::Terminate { claim, .. } => Some(claim),
        _ => None,
    }
}

/// Returns whether a claim's instance runs, according to listings and results.
fn is_running(claim: &NodeClaim) -> bool {
    claim.live_instance().is_some() && !claim.instance_is_gone()
}
