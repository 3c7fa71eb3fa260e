//! Performs the next step of each claim, from Planned to Gone, and applies the timeouts.

use std::borrow::Cow;
use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::{Command, Launch};
use crate::engine::in_flight::{ClaimProgress, ClaimStep, CommandPurpose, DrainState};
use crate::engine::registration::finalizer_removal_patch;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::cluster::MinValuesPolicy;
use crate::model::id::{ClaimId, NodeName};
use crate::model::instance::InstanceState;
use crate::model::labels::TAINT_UNREGISTERED;
use crate::model::node::Node;
use crate::model::pool::{Pool, Reason};
use crate::model::taint::{Effect, Taint};
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot_builder::node_labels;

/// A launch without an answer may have created an instance. It is retried with its client token for
/// this long after its timeout.
const UNSURE_MAX: SignedDuration = SignedDuration::from_mins(10);

/// A pod listing from the API server is valid for this long for a termination.
const CONFIRMED_MAX: SignedDuration = SignedDuration::from_secs(15);
/// Maximum time until a command is sent. It is somewhat longer than the queue of rate-limited
/// calls.
const SENT_MAX: SignedDuration = SignedDuration::from_secs(30);

/// EC2 terminates instances within minutes. Longer terminations are reported after this time.
const LINGERS_AFTER: SignedDuration = SignedDuration::from_mins(10);

impl Engine {
    /// Links Nodes to claims by instance ID.
    pub(super) fn join_nodes(&mut self, now: Timestamp) {
        if self.state.ledger.claims.values().all(|claim| {
            let node = self.node_of(claim);
            claim.instance.is_none() || node.is_some_and(|node| !node.is_awaited())
        }) {
            return;
        }
        let mut found: Vec<(ClaimId, NodeName)> = Vec::new();
        for node in self.state.objects.nodes.values() {
            let owner = node.instance_id();
            let Some(id) = owner.and_then(|owner| self.state.ledger.by_instance(owner)) else {
                continue;
            };
            // A kubelet may register with a name different from the expected one.
            let claim = self.claim(id);
            if claim.is_some_and(|claim| {
                let known = self.node_of(claim);
                known.is_none_or(|known| known.is_awaited() && !node.is_awaited())
            }) {
                found.push((id.clone(), node.name.clone()));
            }
        }
        for (id, node) in found {
            let awaited = self.claim(&id).and_then(|claim| self.node_of(claim));
            if awaited.is_some_and(|awaited| awaited.name != node && awaited.is_awaited()) {
                self.on_unexpected_node_name(&id, now);
            }
            if let Some(claim) = self.state.ledger.claims.get_mut(&id) {
                claim.node = Some(node);
            }
        }
    }

    /// Performs the possible steps of each claim. While the cluster state is out of sync, only
    /// claims whose instances the provider reclaims proceed, because their time is limited.
    pub(super) fn advance_claims(&mut self, now: Timestamp) {
        self.cancel_outdated_terminations(now);
        let whole = self.is_ready();
        let claims = self.state.ledger.claims.iter();
        let ids: Vec<ClaimId> = claims
            .filter(|(_, claim)| whole || claim.leaving == Some(Reason::Interrupted))
            .map(|(id, _)| id.clone())
            .collect();
        for id in ids {
            let progress = self.works.entry(id.clone()).or_default();
            if progress.step.is_some() {
                continue;
            }
            if let Some(at) = progress.retry.next_attempt().filter(|_| !progress.retry.is_due(now))
            {
                self.wake_at(at, "retry a step of a claim");
                continue;
            }
            let Some(claim) = self.claim(&id) else {
                continue;
            };
            if self.instance_ended(claim) && claim.phase != ClaimPhase::Terminating {
                self.terminate_undrained(&id, claim.leaving.unwrap_or(Reason::Orphaned), now);
            }
            self.advance_claim(&id, now);
        }
        self.works.retain(|id, _| self.state.ledger.claims.contains_key(id));
    }

    /// Returns whether an instance is certainly gone: the provider reports it, or it is missing
    /// from listings and its kubelet is silent.
    fn instance_ended(&self, claim: &NodeClaim) -> bool {
        let state = claim.instance.as_ref().map(|instance| instance.state);
        state == Some(InstanceState::Terminated)
            || (claim.instance_is_gone() && self.node_of(claim).is_none_or(|node| !node.ready))
    }

    fn advance_claim(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.claim(id) else {
            return;
        };
        match claim.phase {
            ClaimPhase::Planned | ClaimPhase::Launching => self.launch_claim(id, now),
            ClaimPhase::Launched => self.check_registration(id, now),
            ClaimPhase::Registered => self.check_initialization(id, now),
            ClaimPhase::Initialized => self.check_initialized_node(id, now),
            ClaimPhase::Draining if self.is_managing() => self.drain(id, now),
            ClaimPhase::Terminating if self.is_managing() => self.terminate_instance(id, now),
            // A claim that is gone is forgotten in the same step.
            ClaimPhase::Draining | ClaimPhase::Terminating | ClaimPhase::Gone => {}
        }
    }

    /// Sends the command of a claim's step.
    pub(super) fn send_step(
        &mut self,
        id: &ClaimId,
        step: ClaimStep,
        command: Command,
        now: Timestamp,
    ) {
        if !self.is_managing() {
            return;
        }
        let purpose = CommandPurpose::Step(id.clone());
        let patched = match &command {
            Command::PatchNode(patch) => Some(patch.version.clone()),
            _ => None,
        };
        let command = self.queue_command(command, purpose, now);
        let progress = self.works.entry(id.clone()).or_default();
        progress.step = Some((command, step));
        progress.patched = patched.or(progress.patched.take());
    }

    /// Moves a claim to a phase.
    pub(super) fn enter_phase(&mut self, id: &ClaimId, phase: ClaimPhase, now: Timestamp) {
        let Some(claim) = self.state.ledger.claims.get_mut(id) else {
            return;
        };
        (claim.phase, claim.since) = (phase, now);
        let node = claim.node.clone();
        let (pool, born) = (claim.record.pool.clone(), claim.record.created);
        let is_old = self.state.started.is_some_and(|at| born < at);
        let progress = self.works.entry(id.clone()).or_default();
        progress.overdue = None;
        let found = phase == ClaimPhase::Registered && is_old && progress.patched.is_none();
        let asked = progress.asked.filter(|_| phase == ClaimPhase::Gone);
        if let Some((node, asked)) = node.clone().zip(asked) {
            let (took, age) = (now.duration_since(asked), now.duration_since(born));
            self.push_report(Report::Ended { node, pool: pool.clone(), took, age });
        }
        self.push_report(Report::ClaimPhase { claim: id.clone(), pool, node, phase, found });
        match phase {
            ClaimPhase::Registered => self.on_registered(id, now),
            ClaimPhase::Initialized => self.report_missing_capacity(id),
            _ => {}
        }
        // Many claims may change together.
        self.wake_at(self.next_pass_at(now), "a claim has changed its phase");
    }

    /// Forgets a claim that failed or whose instance is gone.
    pub(super) fn forget_claim(&mut self, id: &ClaimId) {
        self.state.ledger.remove(id);
        self.works.remove(id);
    }

    /// Returns the deadline of a condition first seen at `since`. Time during which decisions were
    /// suspended does not count.
    pub(super) fn condition_deadline(
        &self,
        since: Timestamp,
        timeout: SignedDuration,
    ) -> Timestamp {
        let from = self.looking.thawed.map_or(since, |at| at.max(since));
        from.checked_add(timeout).unwrap_or(Timestamp::MAX)
    }

    /// Returns the deadline of a claim's phase. After a restart each phase has its whole timeout
    /// again.
    pub(super) fn phase_deadline(&self, claim: &NodeClaim, timeout: SignedDuration) -> Timestamp {
        let from = self.state.started.map_or(claim.since, |at| at.max(claim.since));
        from.checked_add(timeout).unwrap_or(Timestamp::MAX)
    }

    /// Returns the pool of a claim, or the default settings if it is no longer configured.
    pub(super) fn pool_of(&self, claim: &NodeClaim) -> Cow<'_, Pool> {
        let pool = self.state.cluster.pool(claim.record.pool.as_str());
        pool.map_or_else(|| Cow::Owned(Pool::new(claim.record.pool.as_str())), Cow::Borrowed)
    }

    fn launch_claim(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.claim(id) else {
            return;
        };
        if claim.instance.is_some() {
            self.enter_phase(id, ClaimPhase::Launched, now);
            return;
        }
        let timeout = self.pool_of(claim).launch_timeout;
        let progress = self.works.get(id);
        // A claim whose instance may exist must not be forgotten: a retry or a listing shows it.
        let grace = progress.filter(|progress| progress.unsure).map(|_| UNSURE_MAX);
        let deadline = self.phase_deadline(claim, timeout + grace.unwrap_or_default());
        if deadline <= now {
            self.push_report(Report::Retire {
                claim: id.clone(),
                pool: claim.record.pool.clone(),
                node: None,
                reason: Reason::TimedOut,
                price: None,
                pods: 0,
            });
            self.forget_claim(id);
            return;
        }
        let is_begun =
            progress.is_some_and(|progress| progress.launch.is_some() || progress.granted);
        self.wake_at(deadline, "a launch is overdue");
        if !is_begun && !self.narrow_offerings(id, now) || self.request_grant(id, now) {
            return;
        }
        let Some(claim) = self.claim(id) else {
            return;
        };
        let known = self.works.get(id).and_then(|progress| progress.launch.clone());
        let launch = known.unwrap_or_else(|| {
            let pool = self.pool_of(claim);
            Box::new(self.launch_of(claim.clone(), &pool))
        });
        if let Some(claim) = self.state.ledger.claims.get_mut(id) {
            claim.phase = ClaimPhase::Launching;
            claim.devices = Some(launch.devices.clone());
        }
        self.progress_of(id).launch = Some(launch.clone());
        self.send_step(id, ClaimStep::Launch, Command::Launch(launch), now);
    }

    /// Returns the launch of a claim.
    fn launch_of(&self, claim: NodeClaim, pool: &Pool) -> Launch {
        let labels = node_labels(&claim, pool);
        let mut taints = pool.taints.clone();
        taints.extend(pool.startup_taints.iter().cloned());
        taints.push(Taint::new(TAINT_UNREGISTERED, Effect::NoExecute));
        let tags = Launch::tags_of(&self.state.cluster, &claim.record);
        let pods = claim.pods.iter().filter_map(|key| self.state.objects.pods.get(key));
        let devices = pods.flat_map(|pod| pod.requests.extended.keys().cloned());
        let catalog = self.state.catalog_of(&pool.name);
        let fewer_will_do = self.state.cluster.scheduling.min_values == MinValuesPolicy::BestEffort;
        Launch {
            devices: devices.collect(),
            overlaid: self.state.is_overlaid(&pool.name),
            varied: pool.is_varied(),
            relaxed: fewer_will_do && catalog.falls_short(&pool.requirements, &claim.offerings),
            claim: claim.record,
            offerings: claim.offerings,
            labels,
            taints,
            tags,
        }
    }

    /// Returns whether the watch shows a Node older than the engine's last change.
    pub(super) fn is_stale(&self, id: &ClaimId, node: &Node) -> bool {
        let progress = self.works.get(id);
        progress
            .and_then(|progress| progress.patched.as_ref())
            .is_some_and(|version| *version == node.version)
    }

    /// Returns a claim and its Node, if the watch shows it.
    pub(super) fn claim_and_node(&self, id: &ClaimId) -> Option<(&NodeClaim, &Node)> {
        let claim = self.claim(id)?;
        Some((claim, self.node_of(claim)?))
    }

    /// Returns the claim with this ID.
    pub(super) fn claim(&self, id: &ClaimId) -> Option<&NodeClaim> {
        self.state.ledger.claims.get(id)
    }

    /// Returns the drain of a claim's node.
    pub(super) fn drain_of(&self, id: &ClaimId) -> Option<&DrainState> {
        self.works.get(id).map(|progress| &progress.drain)
    }

    /// Returns the progress of a claim.
    pub(super) fn progress_of(&mut self, id: &ClaimId) -> &mut ClaimProgress {
        self.works.entry(id.clone()).or_default()
    }

    /// Returns the Node of a claim, as the watch shows it.
    pub(super) fn node_of(&self, claim: &NodeClaim) -> Option<&Node> {
        self.state.node_of(claim)
    }

    /// Terminates the instance of a claim without a drain, because no pods run on it or none can be
    /// evicted. The safeguard may block it.
    pub(super) fn terminate_undrained(&mut self, id: &ClaimId, reason: Reason, now: Timestamp) {
        let claim = self.claim(id);
        let ambiguous = claim.is_some_and(|claim| self.is_ambiguous(claim, reason));
        if ambiguous || !self.may_end_undrained(id, now) {
            return;
        }
        let Some(claim) = self.state.ledger.claims.get_mut(id) else {
            return;
        };
        if claim.leaving.is_none() {
            claim.leaving = Some(reason);
            let node = claim.node.clone();
            let pool = claim.record.pool.clone();
            self.push_report(Report::Retire {
                claim: id.clone(),
                pool,
                node,
                reason,
                price: None,
                pods: 0,
            });
            self.progress_of(id).asked = Some(now);
        }
        self.enter_phase(id, ClaimPhase::Terminating, now);
    }

    fn terminate_instance(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.claim(id) else {
            return;
        };
        let Some(instance) = claim.instance.clone() else {
            self.forget_claim(id);
            return;
        };
        let runs = is_running(claim);
        if runs && !self.may_terminate(claim, now) {
            self.progress_of(id).drain.confirmed = None;
            self.enter_phase(id, ClaimPhase::Draining, now);
            return;
        }
        let reason = claim.leaving.unwrap_or(Reason::Orphaned);
        if self.is_ambiguous(claim, reason) {
            return;
        }
        let drained = !instance.state.is_live() || self.was_drained(id, now);
        if !drained && !self.may_end_undrained(id, now) {
            return;
        }
        self.report_slow_termination(id, now);
        let Some(claim) = self.claim(id) else {
            return;
        };
        // An instance missing from listings is terminated anyway: only the result proves that it is
        // gone.
        let proven = instance.state == InstanceState::Terminated;
        if runs || (claim.instance_is_gone() && !proven) {
            let command = Command::Terminate { claim: id.clone(), instance: instance.id };
            self.send_step(id, ClaimStep::Terminate, command, now);
            return;
        }
        // The Node is deleted only after the provider has confirmed that the instance is gone.
        if !proven {
            return;
        }
        let known = self.node_of(claim);
        if let Some(patch) = known.and_then(finalizer_removal_patch) {
            // The Node waited for this confirmation.
            if known.is_some_and(|node| !self.is_stale(id, node)) {
                self.send_step(id, ClaimStep::Finalizer, Command::PatchNode(patch), now);
            }
            return;
        }
        let node = known.map(|node| (node.name.clone(), node.uid.clone()));
        match node {
            Some((node, _)) if self.unbind_pods(&node, now) => {}
            Some((node, uid)) if !self.is_deleted(id, &uid) => {
                self.looking.gone_nodes.insert(node.clone());
                if let Some(progress) = self.works.get_mut(id) {
                    progress.removed = Some(uid.clone());
                }
                self.send_step(id, ClaimStep::DeleteNode, Command::DeleteNode { node, uid }, now);
            }
            Some(_) => {}
            None => {
                self.state.recent.ended = Some(now);
                self.enter_phase(id, ClaimPhase::Gone, now);
                self.forget_claim(id);
            }
        }
    }

    /// Returns whether two Nodes have the providerID of a claim's instance, so that a termination
    /// would lose the pods of both. An instance that the provider reclaims is drained anyway.
    pub(super) fn is_ambiguous(&self, claim: &NodeClaim, reason: Reason) -> bool {
        let nodes = &self.state.objects.node_instances;
        let live = claim.live_instance();
        reason != Reason::Interrupted
            && live.is_some_and(|instance| nodes.is_shared(instance.id.as_str()))
    }

    /// Returns whether the pods of a disrupted node were evicted, or their time is up.
    fn was_drained(&self, id: &ClaimId, now: Timestamp) -> bool {
        let confirmed = self.drain_of(id).and_then(|drain| drain.confirmed);
        let reason = self.claim(id).and_then(|claim| claim.leaving);
        confirmed.is_some()
            || (self.is_deadline_over(id, now) && !reason.is_some_and(Reason::terminates_undrained))
    }

    /// Reports an instance that does not terminate for a long time.
    fn report_slow_termination(&mut self, id: &ClaimId, now: Timestamp) {
        let claim = self.claim(id);
        let Some(instance) = claim.and_then(|claim| claim.instance.as_ref()) else {
            return;
        };
        let instance = instance.id.clone();
        let progress = self.works.entry(id.clone()).or_default();
        let since = *progress.told_to_end.get_or_insert(now);
        let lingers = &mut progress.lingers;
        let next = lingers.next_report_at(since, LINGERS_AFTER);
        if next > now {
            self.wake_at(next, "an instance should be terminated by now");
            return;
        }
        lingers.record_report(now, LINGERS_AFTER);
        self.push_report(Report::Lingers {
            claim: id.clone(),
            instance,
            since: now.duration_since(since),
        });
    }

    fn is_deleted(&self, id: &ClaimId, uid: &str) -> bool {
        self.works.get(id).is_some_and(|progress| progress.removed.as_deref() == Some(uid))
    }

    /// Returns whether pods may run on the node of a claim. A node counts even if the watch does
    /// not show yet that it was untainted. A Node that was deleted and recreated counts if pods are
    /// bound to it. A Node created for early binding counts while the cluster state is incomplete,
    /// because its kubelet may have registered.
    pub(super) fn may_run_pods(&self, id: &ClaimId, node: &Node, now: Timestamp) -> bool {
        node.may_run_pods()
            || self.is_stale(id, node)
            || match node.is_awaited() {
                true => !self.is_ready() || self.sync_fault(now).is_some(),
                false => self.has_pods(&node.name),
            }
    }

    /// Returns whether an instance may be terminated now: its node was never untainted, or the
    /// drain was confirmed a moment ago and the taint still exists.
    fn may_terminate(&self, claim: &NodeClaim, now: Timestamp) -> bool {
        self.node_of(claim)
            .filter(|node| self.may_run_pods(&claim.record.id, node, now))
            .is_none_or(Node::has_disrupted_taint)
            && self.required_confirmation(claim, now).is_none_or(|confirmed| {
                confirmed.is_some_and(|at| now.duration_since(at) <= CONFIRMED_MAX)
            })
    }

    /// Returns when the drain was confirmed, if the termination of the instance requires that. The
    /// outer `None` means that it does not: no pods can run on its node, or its deadline has
    /// passed. The deadline of an unhealthy node passes immediately, because its kubelet does not
    /// respond.
    fn required_confirmation(
        &self,
        claim: &NodeClaim,
        now: Timestamp,
    ) -> Option<Option<Timestamp>> {
        let id = &claim.record.id;
        let node = self.node_of(claim)?;
        let relies = self.may_run_pods(id, node, now) && !self.is_deadline_over(id, now);
        relies.then(|| self.drain_of(id).and_then(|drain| drain.confirmed))
    }

    /// Returns until when a command may be sent, because decisions become outdated. A termination
    /// must be sent before the confirmation of its drain is too old.
    pub fn send_deadline(&self, command: &Command, now: Timestamp) -> Timestamp {
        let (from, span) = match command {
            Command::Terminate { claim, .. } => {
                let claim = self.claim(claim);
                let relied_on = claim.and_then(|claim| self.required_confirmation(claim, now));
                (relied_on.flatten().unwrap_or(now), CONFIRMED_MAX)
            }
            _ => (now, SENT_MAX),
        };
        from.checked_add(span).unwrap_or(now)
    }

    /// Cancels queued terminations that are no longer permitted: a different client removed the
    /// taint, or the confirmation is too old.
    fn cancel_outdated_terminations(&mut self, now: Timestamp) {
        let queued = self.commands.iter();
        let terminated = queued.filter_map(|issued| terminated_claim(&issued.command));
        let barred: BTreeSet<ClaimId> = terminated
            .filter(|id| {
                let claim = self.claim(id);
                claim.is_some_and(|claim| is_running(claim) && !self.may_terminate(claim, now))
            })
            .cloned()
            .collect();
        if !barred.is_empty() {
            self.cancel_claim_commands(
                |command| terminated_claim(command).is_some_and(|id| barred.contains(id)),
                now,
            );
        }
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
