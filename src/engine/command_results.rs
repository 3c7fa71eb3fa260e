//! Matches each result to its command and records it in the state. The next pass decides on further
//! commands.

use jiff::Timestamp;

use crate::engine::Engine;
use crate::engine::claim_steps;
use crate::engine::claims;
use crate::engine::cluster_identity;
use crate::engine::command::CommandId;
use crate::engine::context::Context;
use crate::engine::controllers::Consolidation;
use crate::engine::drain;
use crate::engine::drain::cancellation;
use crate::engine::drain::volumes;
use crate::engine::early_binding::EarlyBinding;
use crate::engine::fleet_sync;
use crate::engine::in_flight::{ClaimStep, CommandPurpose};
use crate::engine::in_place_update;
use crate::engine::lease_annotations;
use crate::engine::report::Report;
use crate::engine::sweeps;
use crate::engine::sync;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, NodeClassName};
use crate::model::instance::{Instance, InstanceState, OfferingKey};
use crate::provider::{CommandResult, FailureKind, OfferingRefusal};
use crate::state::node_claims::may_be_unlisted;

impl Engine {
    /// Matches a result to its command and handles it.
    pub(super) fn on_command_result(
        &mut self,
        id: CommandId,
        result: CommandResult,
        now: Timestamp,
    ) {
        // The command was sent by an earlier process or has timed out.
        let Some(in_flight) = self.cx.outbox.in_flight.remove(&id) else {
            return;
        };
        if let CommandResult::Failed { kind, text } = &result
            && !matches!(
                kind,
                FailureKind::Gone
                    | FailureKind::Conflict
                    | FailureKind::Busy
                    | FailureKind::Withdrawn
            )
        {
            self.cx.outbox.push_report(Report::Failed {
                command: in_flight.name,
                kind: *kind,
                text: text.clone(),
            });
        }
        let Self { cx, consolidation, nominations, early_binding, fleet, lease, .. } = self;
        match in_flight.kind {
            CommandPurpose::Step(claim) => self.on_step_result(&claim, id, result, now),
            CommandPurpose::Evict(claim, pod) => {
                claim_steps::on_eviction_result(cx, &claim, &pod, result, now)
            }
            CommandPurpose::Listing => on_instances_listed(cx, result, now),
            CommandPurpose::Probe(kind) => {
                let alive = match result {
                    CommandResult::Probed { alive } => Some(alive),
                    _ => None,
                };
                sync::on_probe_result(cx, kind, alive, now);
            }
            CommandPurpose::Nominate(pod) => {
                nominations.on_nomination_result(cx, &pod, &result, now)
            }
            CommandPurpose::ClearNomination(pod) => {
                nominations.on_nomination_cleared(&pod, &result, now)
            }
            CommandPurpose::Bind(claim, pod) => {
                early_binding.on_bind_result(cx, &claim, &pod, &result, now)
            }
            CommandPurpose::Unbind(pod) => early_binding.on_unbind_result(cx, &pod, &result, now),
            CommandPurpose::ReportDisruptions => fleet.on_disruptions_reported(cx, &result, now),
            CommandPurpose::ReportUsage => fleet.on_usage_reported(cx, &result, now),
            CommandPurpose::ReadLease => lease.on_lease_read(cx, result, now),
            CommandPurpose::BufferStatus(patch) => {
                self.buffer_statuses.on_buffer_status_result(cx, *patch, result, now)
            }
            CommandPurpose::NoteLetGo(claims) => lease_annotations::on_disruptions_recorded(
                cx,
                consolidation,
                lease,
                &claims,
                result,
                now,
            ),
            CommandPurpose::RecordSweeps => sweeps::on_sweeps_recorded(cx, lease, result, now),
            CommandPurpose::Tag(claims, tags) => {
                in_place_update::on_tag_result(cx, &claims, &tags, &result, now)
            }
            CommandPurpose::Adopt(node) => {
                self.unclaimed.on_adoption_result(cx, &node, &result, now)
            }
            CommandPurpose::Rewatch(_)
            | CommandPurpose::Orphan(_)
            | CommandPurpose::SaveDiscoveredMemory
            | CommandPurpose::MarkUnavailable => {}
        }
    }

    /// Handles the commands that count as failed: the engine decides again.
    pub(super) fn handle_failed_commands(&mut self, now: Timestamp) {
        for failed in std::mem::take(&mut self.cx.outbox.failed) {
            let (kind, text) = (failed.kind, failed.text);
            self.on_command_result(failed.id, CommandResult::Failed { kind, text }, now);
        }
        // A result may have queued a command.
        cluster_identity::cancel_during_mismatch(&mut self.cx);
    }

    /// Handles the result of a step of a claim.
    fn on_step_result(
        &mut self,
        id: &ClaimId,
        command: CommandId,
        result: CommandResult,
        now: Timestamp,
    ) {
        use CommandResult::{
            Attachments, Denied, Done, Failed, Granted, LaunchRefused, Launched, Pods, Terminating,
        };
        use FailureKind::Gone;

        let Self { cx, consolidation, early_binding, fleet, .. } = self;
        let Some(progress) = cx.progress.get_mut(id) else {
            return;
        };
        let Some((_, step)) = progress.step.take_if(|(expected, _)| *expected == command) else {
            return;
        };
        match (step, result) {
            (ClaimStep::RequestGrant, Granted) => fleet.on_granted(cx, id, now),
            (ClaimStep::RequestGrant, Denied { why, used_up, view }) => {
                fleet.on_denied(cx, id, why, used_up, view, now);
            }
            (ClaimStep::RequestDisruption, Granted) => {
                cx.progress_of(id).drain.clearance.record_grant();
                claim_steps::on_step_succeeded(cx, id);
            }
            (ClaimStep::RequestDisruption, Denied { why, view, .. }) => {
                fleet.apply_fleet_view(cx, view, now);
                cancellation::postpone_drain(cx, consolidation, id, why, now);
            }
            (ClaimStep::Launch, Launched(instance)) => {
                on_launched(cx, consolidation, early_binding, id, instance, now)
            }
            (ClaimStep::Launch, LaunchRefused(refusals)) => {
                on_launch_refused(cx, id, refusals, now);
            }
            (ClaimStep::Launch, Failed { kind, .. }) => {
                claim_steps::on_launch_failed(cx, id, kind, now)
            }
            (ClaimStep::MakeNode, result) => {
                early_binding.on_node_creation_result(cx, id, &result, now)
            }
            (ClaimStep::Terminate, Terminating(state)) => update_instance_state(cx, id, state, now),
            // EC2 may not know a young instance yet, and would leave it running.
            (ClaimStep::Terminate, Failed { kind: Gone, .. }) if is_young(cx, id, now) => {
                claim_steps::on_step_failed(cx, id, now);
            }
            (ClaimStep::Terminate, Failed { kind: Gone, .. }) => {
                update_instance_state(cx, id, InstanceState::Terminated, now);
            }
            (ClaimStep::ListPods, Pods(pods)) => {
                drain::on_pods_listed(cx, consolidation, id, pods, now)
            }
            (ClaimStep::ListAttachments, Attachments(attachments)) => {
                volumes::on_attachments_listed(cx, id, attachments, now);
            }
            (ClaimStep::ListAttachments, Failed { kind, .. }) => {
                claim_steps::on_attachments_failed(cx, id, kind, now);
            }
            (ClaimStep::Mark, Done) => drain::on_marks_restored(cx, id, now),
            (ClaimStep::Taint, Done) => on_tainted(cx, id, now),
            (ClaimStep::Untaint, Done) => cancellation::on_untainted(cx, id),
            (step, Done) if step.needs_no_action() => claim_steps::on_step_succeeded(cx, id),
            // The Node has changed: decide again when the watch shows it.
            (_, Failed { kind: Gone, .. }) => claim_steps::on_step_succeeded(cx, id),
            _ => claim_steps::on_step_failed(cx, id, now),
        }
    }
}

/// Returns whether the engine expects a result that will change the next decision, or whether a
/// result is overdue. Periodic reads change nothing before their results arrive.
pub(super) fn awaits_command_results(cx: &Context, now: Timestamp) -> bool {
    !cx.outbox.in_flight.values().all(|in_flight| {
        matches!(in_flight.kind, CommandPurpose::Listing | CommandPurpose::ReadLease)
            && !in_flight.is_late(now)
    })
}

fn on_instances_listed(cx: &mut Context, result: CommandResult, now: Timestamp) {
    cx.sync.listing = false;
    cx.sync.listing_news = true;
    let instances = match result {
        CommandResult::Instances(instances) => instances,
        CommandResult::Failed { text, .. } => {
            cx.sync.listing_failed = Some(text);
            return;
        }
        _ => return,
    };
    cx.sync.listing_failed = None;
    cx.sync.listing_answered = cx.sync.listing_asked;
    let cluster = cx.state.cluster.clone();
    let outcome = cx.state.ledger.apply_listing(instances, &cluster, now);
    for (instance, why) in outcome.foreign_instances {
        cx.outbox.push_report(Report::Stranger { instance, why });
    }
    for claim in outcome.found {
        let instance = cx.claim(&claim).and_then(|claim| claim.instance.as_ref());
        let offering = instance.map(|instance| instance.offering.clone());
        if let Some(offering) = &offering {
            record_launched_offerings(cx, &claim, offering);
        }
        cx.outbox.push_report(Report::ClaimPhase {
            pool: cx.state.ledger.pool_of(&claim),
            claim,
            node: None,
            offering,
            phase: ClaimPhase::Launched,
            drained: false,
            found: false,
        });
    }
    cx.sync.listing_news = outcome.news || cx.sync.listing_fault.is_some();
    cx.sync.listing_fault = outcome.partial.then(|| "the listing of instances shrank".to_owned());
}

/// Returns whether the provider may not know the instance of a claim yet.
fn is_young(cx: &Context, id: &ClaimId, now: Timestamp) -> bool {
    let instance = cx.claim(id).and_then(|claim| claim.instance.as_ref());
    instance.is_some_and(|instance| may_be_unlisted(instance, now))
}

fn on_tainted(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    if let Some(progress) = cx.progress.get_mut(id) {
        progress.drain.taint.confirmed = Some(now);
    }
    claim_steps::on_step_succeeded(cx, id);
}

fn on_launch_refused(
    cx: &mut Context,
    id: &ClaimId,
    refusals: Vec<OfferingRefusal>,
    now: Timestamp,
) {
    let class = class_of(cx, id);
    fleet_sync::on_offerings_refused(cx, class.as_ref(), &refusals, now);
    let claim = id.clone();
    cx.outbox.push_report(Report::ClaimRefused { claim, refusals });
    claim_steps::on_launch_refused(cx, id, now);
    claims::forget_claim(cx, id);
}

fn class_of(cx: &Context, id: &ClaimId) -> Option<NodeClassName> {
    let claim = cx.claim(id);
    claim.and_then(|claim| claim.record.node_class.clone())
}

/// Records that the launch of a claim has succeeded with an offering: other launches may request
/// its offerings.
fn record_launched_offerings(cx: &mut Context, id: &ClaimId, launched: &OfferingKey) {
    let Some(claim) = cx.state.ledger.claims.get(id) else {
        return;
    };
    let (class, holds) = (claim.record.node_class.as_ref(), &mut cx.state.holds);
    holds.mark_available(class, launched);
    for offering in &claim.offerings {
        holds.record_success(class, offering, id);
    }
}

fn on_launched(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    early_binding: &EarlyBinding,
    id: &ClaimId,
    instance: Instance,
    now: Timestamp,
) {
    if !instance.state.is_live() {
        // The client token was used and its instance is terminated: plan again with a new ID.
        claims::forget_claim(cx, id);
        return;
    }
    let listed = cx.state.catalog.offering(&instance.offering);
    let price = listed.map(|offering| offering.price);
    let offering = instance.offering.clone();
    let instance_id = instance.id.clone();
    record_launched_offerings(cx, id, &offering);
    if let Some(claim) = cx.state.ledger.claims.get(id) {
        cx.launch_retries.retain(|pod, _| !claim.pods.contains(pod));
    }
    let id = &claims::join_launched_instance(cx, consolidation, id, instance, now);
    cx.state.recent.launched = Some(now);
    cx.outbox.push_report(Report::ClaimLaunched {
        claim: id.clone(),
        instance: instance_id,
        offering,
        price,
    });
    claim_steps::on_step_succeeded(cx, id);
    if let Some(claim) = cx.state.ledger.claims.get_mut(id)
        && claim.phase < ClaimPhase::Launched
    {
        (claim.phase, claim.since) = (ClaimPhase::Launched, now);
        claim.offerings.clear();
    }
    // The pods are bound immediately, without waiting for the next pass.
    early_binding.bind_early(cx, id, now);
}

fn update_instance_state(cx: &mut Context, id: &ClaimId, state: InstanceState, now: Timestamp) {
    let claim = cx.state.ledger.claims.get_mut(id);
    let Some(instance) = claim.and_then(|claim| claim.instance.as_mut()) else {
        return;
    };
    instance.state = instance.state.max(state);
    // The termination was requested and is no longer in flight: request it again.
    if instance.state.is_live()
        && let Some(progress) = cx.progress.get_mut(id)
    {
        progress.retry.record_failure(now, &mut cx.rng);
    }
}
