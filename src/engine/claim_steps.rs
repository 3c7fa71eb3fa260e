//! Sends the steps of claims, and handles failed and cancelled steps.

use jiff::{SignedDuration, Timestamp};

use crate::engine::backoff::Backoff;
use crate::engine::claims;
use crate::engine::command::{Command, CommandId};
use crate::engine::context::Context;
use crate::engine::controllers::Interruptions;
use crate::engine::discovered_capacity;
use crate::engine::in_flight::{ClaimStep, CommandPurpose};
use crate::engine::registration_backoff;
use crate::engine::report::Report;
use crate::engine::sync;
use crate::engine::undrained_terminations;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, PodKey};
use crate::model::node::Node;
use crate::model::pool::Reason;
use crate::model::template_hash::hashes_in;
use crate::provider::{CommandResult, FailureKind};

/// How long after the end of its wait a failed launch of a pod is remembered.
const RETRIES_KEPT: SignedDuration = SignedDuration::from_mins(5);

/// Sends the command of a claim's step.
pub(super) fn send_step(
    cx: &mut Context,
    id: &ClaimId,
    step: ClaimStep,
    command: Command,
    now: Timestamp,
) {
    if !cx.is_managing() {
        return;
    }
    let purpose = CommandPurpose::Step(id.clone());
    let patched = match &command {
        Command::PatchNode(patch) => Some(patch.version.clone()),
        _ => None,
    };
    let command = cx.outbox.queue_command(command, purpose, now);
    let progress = cx.progress.entry(id.clone()).or_default();
    progress.step = Some((command, step));
    progress.patched = patched.or(progress.patched.take());
}

/// Moves a claim to a phase.
pub(super) fn enter_phase(cx: &mut Context, id: &ClaimId, phase: ClaimPhase, now: Timestamp) {
    let Some(claim) = cx.state.ledger.claims.get_mut(id) else {
        return;
    };
    let before = claim.phase;
    (claim.phase, claim.since) = (phase, now);
    let node = claim.node.clone();
    let offering = claim.instance.as_ref().map(|instance| instance.offering.clone());
    let (pool, born) = (claim.record.pool.clone(), claim.record.created);
    let is_old = cx.state.started.is_some_and(|at| born < at);
    let progress = cx.progress.entry(id.clone()).or_default();
    progress.overdue = None;
    let found = phase == ClaimPhase::Registered && is_old && progress.patched.is_none();
    // A claim whose termination is retried drains again: its drain ends once.
    let drained = before == ClaimPhase::Draining
        && phase == ClaimPhase::Terminating
        && progress.drain.listing.confirmed.is_some()
        && !std::mem::replace(&mut progress.told_drained, true);
    let asked = progress.asked.filter(|_| phase == ClaimPhase::Gone);
    if let Some((node, asked)) = node.clone().zip(asked) {
        let (took, age) = (now.duration_since(asked), now.duration_since(born));
        let ended = progress.terminated.unwrap_or(now);
        let ending = progress.told_to_end.map(|at| ended.duration_since(at));
        cx.outbox.push_report(Report::Ended { node, pool: pool.clone(), took, ending, age });
    }
    let claim = id.clone();
    let entered = Report::ClaimPhase { claim, pool, node, offering, phase, drained, found };
    cx.outbox.push_report(entered);
    match phase {
        ClaimPhase::Registered => registration_backoff::on_registered(cx, id, now),
        ClaimPhase::Initialized => discovered_capacity::report_missing_capacity(cx, id),
        _ => {}
    }
    // Many claims may change together.
    cx.outbox.wake_at(cx.next_pass_at(now), "a claim has changed its phase");
}

/// Terminates the instance of a claim without a drain, because no pods run on it or none can be
/// evicted. The safeguard may block it.
pub(super) fn terminate_undrained(
    cx: &mut Context,
    interruptions: &Interruptions,
    id: &ClaimId,
    reason: Reason,
    now: Timestamp,
) {
    let claim = cx.claim(id);
    let ambiguous = claim.is_some_and(|claim| claims::is_ambiguous(cx, claim, reason));
    if ambiguous || !undrained_terminations::may_terminate_undrained(cx, interruptions, id, now) {
        return;
    }
    let Some(claim) = cx.state.ledger.claims.get_mut(id) else {
        return;
    };
    if claim.leaving.is_none() {
        claim.leaving = Some(reason);
        let node = claim.node.clone();
        let pool = claim.record.pool.clone();
        let capacity_type = claim.capacity_type();
        cx.outbox.push_report(Report::Retire {
            claim: id.clone(),
            pool,
            node,
            capacity_type,
            reason,
            price: None,
            pods: 0,
        });
        cx.progress_of(id).asked = Some(now);
    }
    enter_phase(cx, id, ClaimPhase::Terminating, now);
}

pub(super) fn on_step_succeeded(cx: &mut Context, id: &ClaimId) {
    if let Some(progress) = cx.progress.get_mut(id) {
        progress.retry = Default::default();
        // The launch parameters are no longer needed.
        progress.launch = None;
    }
}

pub(super) fn on_step_failed(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    if let Some(progress) = cx.progress.get_mut(id) {
        (progress.patched, progress.removed) = (None, None);
        progress.retry.record_failure(now, &mut cx.rng);
    }
}

/// Handles a failed launch. A launch that may have created an instance is repeated with the
/// same client token. A launch that created none is repeated with a new token, because the
/// provider would return the old error; a launch that EC2 has not looked at because of a rate limit
/// keeps its token, and its timeout starts again. If the pool or node class has changed, the pods
/// are planned again instead.
pub(super) fn on_launch_failed(cx: &mut Context, id: &ClaimId, kind: FailureKind, now: Timestamp) {
    let Some(mut progress) = cx.progress.remove(id) else {
        return;
    };
    let is_limited = matches!(kind, FailureKind::Throttled | FailureKind::Busy);
    let was_sent = !is_limited && kind != FailureKind::Withdrawn;
    progress.unsure |= kind == FailureKind::Unknown;
    if !was_sent {
        progress.retry.record_rate_limit(now, &mut cx.rng);
    } else {
        progress.retry.record_failure(now, &mut cx.rng);
        remember_launch_retry(cx, id, progress.retry);
    }
    let spent = !progress.unsure && kind != FailureKind::Withdrawn;
    if let Some(claim) = cx.state.ledger.claims.get_mut(id)
        && !progress.unsure
        && !was_sent
    {
        claim.since = now;
    }
    let Some(mut claim) = cx.claim(id).filter(|_| spent).cloned() else {
        cx.progress.insert(id.clone(), progress);
        return;
    };
    cx.state.ledger.remove(id);
    let record = &claim.record;
    let pool = cx.state.cluster.pool(record.pool.as_str());
    if !pool.is_some_and(|pool| {
        let (of_pool, of_class) = hashes_in(&cx.state.cluster, pool);
        (&of_pool, &of_class) == (&record.pool_hash, &record.node_class_hash)
    }) {
        let (claim, next) = (id.clone(), None);
        cx.outbox.push_report(Report::ClaimRenewed { claim, next });
        return;
    }
    (claim.phase, claim.devices) = (ClaimPhase::Planned, None);
    progress.launch = None;
    if is_limited {
        cx.state.ledger.insert(claim);
        cx.progress.insert(id.clone(), progress);
        return;
    }
    let next = ClaimId::from(claims::new_random_id(cx));
    claim.record.id = next.clone();
    progress.granted = false;
    cx.state.ledger.insert(claim);
    cx.progress.insert(next.clone(), progress);
    let (claim, next) = (id.clone(), Some(next));
    cx.outbox.push_report(Report::ClaimRenewed { claim, next });
}

/// Records a refused launch. Its pods are planned again, and the launch of their next claim may
/// wait.
pub(super) fn on_launch_refused(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    let mut retry = cx.progress_of(id).retry;
    retry.record_refusal(now, &mut cx.rng);
    remember_launch_retry(cx, id, retry);
}

fn remember_launch_retry(cx: &mut Context, id: &ClaimId, retry: Backoff) {
    if let Some(claim) = cx.state.ledger.claims.get(id) {
        for pod in &claim.pods {
            let known = cx.launch_retries.entry(pod.clone()).or_default();
            *known = retry.longer(*known);
        }
    }
}

/// Returns the wait of a launch whose pods have failed launches behind them. The launch of any
/// other pod does not wait.
pub(super) fn launch_retry<'a>(
    cx: &Context,
    pods: impl IntoIterator<Item = &'a PodKey>,
) -> Backoff {
    let pods = pods.into_iter();
    let retries = pods.map(|pod| cx.launch_retries.get(pod).copied().unwrap_or_default());
    retries.min_by_key(Backoff::next_attempt).unwrap_or_default()
}

/// Forgets the failed launches of deleted pods, and those that are older than this.
pub(super) fn forget_launch_retries(cx: &mut Context, now: Timestamp) {
    let pods = &cx.state.objects.pods;
    cx.launch_retries.retain(|pod, retry| {
        let at = retry.next_attempt().unwrap_or(now);
        pods.contains_key(pod) && now.duration_since(at) < RETRIES_KEPT
    });
}

/// Cancels the matching queued steps, evictions and bindings of claims. Each cancelled command
/// counts as failed, and the engine decides again.
pub(super) fn cancel_claim_commands(
    cx: &mut Context,
    which: impl Fn(&Command) -> bool,
    now: Timestamp,
) {
    let withdrawn = cx.outbox.withdraw_queued(|command, purpose| {
        let is_of_claim = matches!(
            purpose,
            CommandPurpose::Step(_) | CommandPurpose::Evict(..) | CommandPurpose::Bind(..)
        );
        is_of_claim && which(command)
    });
    let result = CommandResult::Failed { kind: FailureKind::Withdrawn, text: String::new() };
    for (id, purpose) in withdrawn {
        match purpose {
            CommandPurpose::Step(claim) => on_step_withdrawn(cx, &claim, id, now),
            CommandPurpose::Evict(claim, pod) => {
                on_eviction_result(cx, &claim, &pod, result.clone(), now);
            }
            CommandPurpose::Bind(claim, pod) => {
                record_bind_result(cx, &claim, &pod, &result, now);
            }
            _ => {}
        }
    }
}

/// Handles a step that was not sent.
pub(super) fn on_step_withdrawn(
    cx: &mut Context,
    id: &ClaimId,
    command: CommandId,
    now: Timestamp,
) {
    let step = cx
        .progress
        .get_mut(id)
        .and_then(|progress| progress.step.take_if(|(expected, _)| *expected == command));
    match step {
        None => {}
        Some((_, ClaimStep::Launch)) => on_launch_failed(cx, id, FailureKind::Withdrawn, now),
        Some((_, ClaimStep::ListAttachments)) => {
            on_attachments_failed(cx, id, FailureKind::Withdrawn, now);
        }
        Some(_) => on_step_failed(cx, id, now),
    }
}

/// Handles the result of an eviction. While the pod exists, the eviction is repeated at growing
/// intervals. The watch shows when the pod is gone.
pub(super) fn on_eviction_result(
    cx: &mut Context,
    id: &ClaimId,
    pod: &PodKey,
    result: CommandResult,
    now: Timestamp,
) {
    let reason = cx.claim(id).and_then(|claim| claim.leaving);
    let progress = cx.progress.get_mut(id);
    let Some(eviction) = progress.and_then(|progress| progress.drain.evictions.get_mut(pod)) else {
        return;
    };
    eviction.in_flight = false;
    eviction.retry.record_eviction(now, &mut cx.rng);
    eviction.refused = matches!(result, CommandResult::EvictRefused(_)).then_some(now);
    if result == CommandResult::Done && !std::mem::replace(&mut eviction.taken, true) {
        let (pod, reason) = (pod.clone(), reason.unwrap_or(Reason::Orphaned));
        cx.outbox.push_report(Report::Evicted { pod, reason });
        return;
    }
    if let CommandResult::EvictRefused(text) = result
        && !std::mem::replace(&mut eviction.told, true)
    {
        let pod = pod.clone();
        cx.outbox.push_report(Report::EvictRefused { pod, text });
    }
}

/// Handles a failed listing of attachments. If the permission is missing, the engine reports that,
/// and the termination does not wait. Other failures are retried.
pub(super) fn on_attachments_failed(
    cx: &mut Context,
    id: &ClaimId,
    kind: FailureKind,
    now: Timestamp,
) {
    if let Some(progress) = cx.progress.get_mut(id) {
        progress.drain.detach.over |= kind == FailureKind::Denied;
        progress.retry.record_failure(now, &mut cx.rng);
    }
}

/// Records the result of a binding. Returns false if the claim has no progress.
pub(super) fn record_bind_result(
    cx: &mut Context,
    id: &ClaimId,
    pod: &PodKey,
    result: &CommandResult,
    now: Timestamp,
) -> bool {
    let Some(progress) = cx.progress.get_mut(id) else {
        return false;
    };
    let early = &mut progress.early;
    early.bound += usize::from(*result == CommandResult::Done);
    if let Some(bind) = early.binds.get_mut(pod) {
        bind.on_result(result, &mut cx.rng, now);
    }
    if early.binds.values().all(|bind| !bind.in_flight) {
        let pods = std::mem::take(&mut early.bound);
        report_bound_pods(cx, id, pods, now);
    }
    true
}

pub(super) fn report_bound_pods(cx: &mut Context, id: &ClaimId, pods: usize, now: Timestamp) {
    let claim = cx.claim(id).filter(|_| pods > 0);
    let known = claim.and_then(|claim| Some((claim, claim.expected_node()?)));
    if let Some((claim, node)) = known {
        cx.outbox.push_report(Report::BoundEarly {
            claim: id.clone(),
            node: node.name.clone(),
            pods,
            after: now.duration_since(claim.since),
        });
    }
}

/// Returns whether pods may run on the node of a claim. This includes an untainted node that the
/// watch still shows as tainted, and a Node that was deleted and recreated, if pods are bound to
/// it. While the cluster state is incomplete, it includes a Node created for early binding, because
/// its kubelet may have registered.
pub(super) fn may_run_pods(cx: &Context, id: &ClaimId, node: &Node, now: Timestamp) -> bool {
    node.may_run_pods()
        || claims::is_stale(cx, id, node)
        || match node.is_awaited() {
            true => !cx.is_ready() || sync::sync_fault(cx, now).is_some(),
            false => claims::has_pods(cx, &node.name),
        }
}
