//! Matches each result to its command and records it in the state. The next pass decides what
//! follows.

use jiff::Timestamp;

use crate::engine::Engine;
use crate::engine::command::{Command, CommandId, CommandResult, FailureKind, OfferingRefusal};
use crate::engine::in_flight::{ANSWER_MAX, ClaimStep, CommandPurpose};
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, NodeClassName};
use crate::model::instance::{Instance, InstanceState};
use crate::model::template_hash::hashes_in;

impl Engine {
    /// Matches a result to its command and handles it.
    pub(super) fn on_command_result(
        &mut self,
        id: CommandId,
        result: CommandResult,
        now: Timestamp,
    ) {
        // The command was sent by an earlier process or has timed out.
        let Some(in_flight) = self.flights.remove(&id) else {
            return;
        };
        if let CommandResult::Failed { kind, text } = &result
            && !matches!(kind, FailureKind::Gone | FailureKind::Conflict | FailureKind::Withdrawn)
        {
            self.push_report(Report::Failed {
                command: in_flight.name,
                kind: *kind,
                text: text.clone(),
            });
        }
        match in_flight.kind {
            CommandPurpose::Step(claim) => self.on_step_result(&claim, id, result, now),
            CommandPurpose::Evict(claim, pod) => self.on_eviction_result(&claim, &pod, result, now),
            CommandPurpose::Listing => self.on_instances_listed(result, now),
            CommandPurpose::Probe(kind) => {
                let alive = match result {
                    CommandResult::Probed { alive } => Some(alive),
                    _ => None,
                };
                self.on_probe_result(kind, alive, now);
            }
            CommandPurpose::Nominate(pod) => self.on_nomination_result(&pod, &result, now),
            CommandPurpose::ClearNomination(pod) => self.on_nomination_cleared(&pod, &result, now),
            CommandPurpose::Bind(claim, pod) => self.on_bind_result(&claim, &pod, &result, now),
            CommandPurpose::Unbind(pod) => self.on_unbind_result(&pod, &result, now),
            CommandPurpose::ReportDisruptions => self.on_disruptions_reported(&result, now),
            CommandPurpose::ReportUsage => self.on_usage_reported(&result, now),
            CommandPurpose::ReadLease => self.on_lease_read(result, now),
            CommandPurpose::BufferStatus(patch) => {
                self.on_buffer_status_result(*patch, result, now)
            }
            CommandPurpose::NoteLetGo(claims) => self.on_disruptions_recorded(&claims, result, now),
            CommandPurpose::Tag(claims, tags) => self.on_tag_result(&claims, &tags, &result, now),
            CommandPurpose::Adopt(node) => self.on_adoption_result(&node, &result, now),
            CommandPurpose::Rewatch(_)
            | CommandPurpose::Orphan(_)
            | CommandPurpose::SaveDiscoveredMemory
            | CommandPurpose::MarkUnavailable => {}
        }
    }

    /// Cancels the matching steps, evictions and bindings of claims that are still in the queue.
    /// Each one counts as failed, and the engine decides again.
    pub(super) fn cancel_claim_commands(
        &mut self,
        which: impl Fn(&Command) -> bool,
        now: Timestamp,
    ) {
        let withdrawn = self.withdraw_queued(|command, purpose| {
            let is_of_claim = matches!(
                purpose,
                CommandPurpose::Step(_) | CommandPurpose::Evict(..) | CommandPurpose::Bind(..)
            );
            is_of_claim && which(command)
        });
        let result = CommandResult::Failed { kind: FailureKind::Withdrawn, text: String::new() };
        for (id, purpose) in withdrawn {
            match purpose {
                CommandPurpose::Step(claim) => self.on_step_withdrawn(&claim, id, now),
                CommandPurpose::Evict(claim, pod) => {
                    self.on_eviction_result(&claim, &pod, result.clone(), now);
                }
                CommandPurpose::Bind(claim, pod) => {
                    self.record_bind_result(&claim, &pod, &result, now);
                }
                _ => {}
            }
        }
    }

    /// Handles a step that was not sent.
    fn on_step_withdrawn(&mut self, id: &ClaimId, command: CommandId, now: Timestamp) {
        let step = self
            .works
            .get_mut(id)
            .and_then(|progress| progress.step.take_if(|(expected, _)| *expected == command));
        match step {
            None => {}
            Some((_, ClaimStep::Launch)) => self.on_launch_failed(id, FailureKind::Withdrawn, now),
            Some((_, ClaimStep::ListAttachments)) => {
                self.on_attachments_failed(id, FailureKind::Withdrawn, now);
            }
            Some(_) => self.on_step_failed(id, now),
        }
    }

    /// Returns whether an expected result will change the next decision, or a result is overdue.
    /// Periodic reads change nothing before their results arrive.
    pub(super) fn awaits_command_results(&self, now: Timestamp) -> bool {
        !self.flights.values().all(|in_flight| {
            matches!(in_flight.kind, CommandPurpose::Listing | CommandPurpose::ReadLease)
                && !in_flight.is_late(now)
        })
    }

    /// Fails overdue commands with an unknown outcome.
    pub(super) fn fail_overdue_commands(&mut self, now: Timestamp) {
        let late: Vec<CommandId> = self
            .flights
            .iter()
            .filter(|(_, in_flight)| in_flight.is_late(now))
            .map(|(id, _)| *id)
            .collect();
        // A queued command must not be sent later, when the engine may have decided differently.
        self.commands.retain(|command| !late.contains(&command.id));
        for id in late {
            let text = format!("no answer within {ANSWER_MAX:#}");
            self.on_command_result(
                id,
                CommandResult::Failed { kind: FailureKind::Unknown, text },
                now,
            );
        }
    }

    fn on_instances_listed(&mut self, result: CommandResult, now: Timestamp) {
        self.looking.listing = false;
        self.looking.listing_news = true;
        let instances = match result {
            CommandResult::Instances(instances) => instances,
            CommandResult::Failed { text, .. } => {
                self.looking.listing_failed = Some(text);
                return;
            }
            _ => return,
        };
        self.looking.listing_failed = None;
        self.looking.listing_answered = self.looking.listing_asked;
        let cluster = self.state.cluster.clone();
        let outcome = self.state.ledger.apply_listing(instances, &cluster, now);
        for (instance, why) in outcome.foreign_instances {
            self.push_report(Report::Stranger { instance, why });
        }
        for claim in outcome.found {
            self.record_launched_offerings(&claim);
            self.push_report(Report::ClaimPhase {
                pool: self.state.ledger.pool_of(&claim),
                claim,
                node: None,
                phase: ClaimPhase::Launched,
                found: false,
            });
        }
        self.looking.listing_news = outcome.news || self.looking.listing_fault.is_some();
        self.looking.listing_fault =
            outcome.partial.then(|| "the listing of instances shrank".to_owned());
    }

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

        let Some(progress) = self.works.get_mut(id) else {
            return;
        };
        let Some((_, step)) = progress.step.take_if(|(expected, _)| *expected == command) else {
            return;
        };
        match (step, result) {
            (ClaimStep::RequestGrant, Granted) => self.on_granted(id, now),
            (ClaimStep::RequestGrant, Denied { why, used_up, view }) => {
                self.on_denied(id, why, used_up, view, now);
            }
            (ClaimStep::RequestDisruption, Granted) => {
                self.progress_of(id).drain.granted = true;
                self.on_step_succeeded(id);
            }
            (ClaimStep::RequestDisruption, Denied { why, view, .. }) => {
                self.apply_fleet_view(view, now);
                self.postpone_drain(id, why, now);
            }
            (ClaimStep::Launch, Launched(instance)) => self.on_launched(id, instance, now),
            (ClaimStep::Launch, LaunchRefused(refusals)) => {
                self.on_launch_refused(id, refusals, now);
            }
            (ClaimStep::Launch, Failed { kind, .. }) => self.on_launch_failed(id, kind, now),
            (ClaimStep::MakeNode, result) => self.on_node_creation_result(id, &result, now),
            (ClaimStep::Terminate, Terminating(state)) => {
                self.update_instance_state(id, state, now)
            }
            (ClaimStep::Terminate, Failed { kind: Gone, .. }) => {
                self.update_instance_state(id, InstanceState::Terminated, now);
            }
            (ClaimStep::ListPods, Pods(pods)) => self.on_pods_listed(id, pods, now),
            (ClaimStep::ListAttachments, Attachments(attachments)) => {
                self.on_attachments_listed(id, attachments, now);
            }
            (ClaimStep::ListAttachments, Failed { kind, .. }) => {
                self.on_attachments_failed(id, kind, now);
            }
            (ClaimStep::Mark, Done) => self.on_marks_restored(id, now),
            (ClaimStep::Taint, Done) => self.on_tainted(id, now),
            (ClaimStep::Untaint, Done) => self.on_untainted(id),
            (step, Done) if step.needs_no_action() => self.on_step_succeeded(id),
            // The Node has changed: decide again when the watch shows it.
            (_, Failed { kind: Gone, .. }) => self.on_step_succeeded(id),
            _ => self.on_step_failed(id, now),
        }
    }

    fn on_tainted(&mut self, id: &ClaimId, now: Timestamp) {
        if let Some(progress) = self.works.get_mut(id) {
            progress.drain.tainted = Some(now);
        }
        self.on_step_succeeded(id);
    }

    fn on_launch_refused(&mut self, id: &ClaimId, refusals: Vec<OfferingRefusal>, now: Timestamp) {
        let class = self.class_of(id);
        self.on_offerings_refused(class.as_ref(), &refusals, now);
        let claim = id.clone();
        self.push_report(Report::ClaimRefused { claim, refusals });
        self.forget_claim(id);
    }

    pub(super) fn on_step_failed(&mut self, id: &ClaimId, now: Timestamp) {
        if let Some(progress) = self.works.get_mut(id) {
            (progress.patched, progress.removed) = (None, None);
            progress.retry.record_failure(now, &mut self.rng);
        }
    }

    /// Handles a failed launch. A launch that may have created an instance is repeated with the
    /// same client token. A launch that created none is repeated with a new token, because the
    /// provider would return the old error. If the pool or node class has changed, the pods are
    /// planned again instead.
    fn on_launch_failed(&mut self, id: &ClaimId, kind: FailureKind, now: Timestamp) {
        let Some(mut progress) = self.works.remove(id) else {
            return;
        };
        progress.unsure |= kind == FailureKind::Unknown;
        progress.retry.record_failure(now, &mut self.rng);
        let claim = self.claim(id);
        let spent = !progress.unsure && kind != FailureKind::Withdrawn;
        let Some(mut claim) = claim.filter(|_| spent).cloned() else {
            self.works.insert(id.clone(), progress);
            return;
        };
        self.state.ledger.remove(id);
        let record = &claim.record;
        let pool = self.state.cluster.pool(record.pool.as_str());
        if !pool.is_some_and(|pool| {
            let (of_pool, of_class) = hashes_in(&self.state.cluster, pool);
            (&of_pool, &of_class) == (&record.pool_hash, &record.node_class_hash)
        }) {
            let (claim, next) = (id.clone(), None);
            self.push_report(Report::ClaimRenewed { claim, next });
            return;
        }
        let next = ClaimId::from(self.new_random_id());
        claim.record.id = next.clone();
        (claim.phase, claim.devices) = (ClaimPhase::Planned, None);
        (progress.launch, progress.granted) = (None, false);
        self.state.ledger.insert(claim);
        self.works.insert(next.clone(), progress);
        let (claim, next) = (id.clone(), Some(next));
        self.push_report(Report::ClaimRenewed { claim, next });
    }

    fn class_of(&self, id: &ClaimId) -> Option<NodeClassName> {
        let claim = self.claim(id);
        claim.and_then(|claim| claim.record.node_class.clone())
    }

    pub(super) fn on_step_succeeded(&mut self, id: &ClaimId) {
        if let Some(progress) = self.works.get_mut(id) {
            progress.retry = Default::default();
            // The launch parameters are no longer needed.
            progress.launch = None;
        }
    }

    /// Records that the launch of a claim has succeeded: other launches may request its offerings.
    fn record_launched_offerings(&mut self, id: &ClaimId) {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return;
        };
        let (class, holds) = (claim.record.node_class.as_ref(), &mut self.state.holds);
        if let Some(instance) = &claim.instance {
            holds.mark_available(class, &instance.offering);
        }
        for offering in &claim.offerings {
            holds.record_success(class, offering, id);
        }
    }

    fn on_launched(&mut self, id: &ClaimId, instance: Instance, now: Timestamp) {
        if !instance.state.is_live() {
            // The client token was used and its instance is terminated: plan again with a new ID.
            self.forget_claim(id);
            return;
        }
        let listed = self.state.catalog.offering(&instance.offering);
        let price = listed.map(|offering| offering.price);
        let offering = instance.offering.clone();
        let instance_id = instance.id.clone();
        self.state.ledger.join_instance(id, instance);
        self.state.recent.launched = Some(now);
        self.record_launched_offerings(id);
        self.push_report(Report::ClaimLaunched {
            claim: id.clone(),
            instance: instance_id,
            offering,
            price,
        });
        self.on_step_succeeded(id);
        if let Some(claim) = self.state.ledger.claims.get_mut(id)
            && claim.phase < ClaimPhase::Launched
        {
            (claim.phase, claim.since) = (ClaimPhase::Launched, now);
            claim.offerings.clear();
        }
        // The pods are bound immediately, without waiting for the next pass.
        self.bind_early(id, now);
    }

    fn update_instance_state(&mut self, id: &ClaimId, state: InstanceState, now: Timestamp) {
        let claim = self.state.ledger.claims.get_mut(id);
        let Some(instance) = claim.and_then(|claim| claim.instance.as_mut()) else {
            return;
        };
        instance.state = instance.state.max(state);
        // The termination was requested and is no longer in flight: request it again.
        if instance.state.is_live()
            && let Some(progress) = self.works.get_mut(id)
        {
            progress.retry.record_failure(now, &mut self.rng);
        }
    }
}
