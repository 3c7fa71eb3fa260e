//! Nominates nodes for pods before the nodes are untainted, and untaints the nodes of one plan
//! together.
//!
//! The scheduler tries all pending pods as soon as one node is untainted, and removes the
//! nomination of a pod whose node is still tainted. Therefore all pods of a plan are nominated
//! first, removed nominations are restored, and then all its nodes are untainted simultaneously.

use std::collections::{BTreeMap, HashSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::controllers::{Consolidation, Nominations};
use crate::engine::in_flight::{CommandPurpose, GroupKey, Nomination, OpeningGroup};
use crate::engine::replacement_pods;
use crate::model::claim::ClaimPhase;
use crate::model::cluster::PlacementHints;
use crate::model::id::{ClaimId, NodeName, PodKey};
use crate::model::labels::{HOSTNAME, Labels};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::provider::{CommandResult, FailureKind};
use crate::state::node_claims::NodeClaim;

/// Maximum time that a registered node remains tainted for nominations.
const CLOSED_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Maximum time for the nominations of a node's pods. After that the node is untainted anyway.
const HINTS_MAX: SignedDuration = SignedDuration::from_secs(10);

/// Maximum time in which removed nominations are restored after all pods of a plan were nominated.
/// The scheduler may retry pods all the time, so a longer wait only loses further nominations.
const AGAIN_MAX: SignedDuration = SignedDuration::from_millis(250);

/// Maximum time that a ready node waits for other nodes of its plan. With a longer wait, runnable
/// pods would wait for one machine that boots slowly.
const TOGETHER_MAX: SignedDuration = SignedDuration::from_secs(5);

/// Maximum delay between a result and the watch. A nomination that the watch does not show by then
/// was removed immediately.
const SHOWN_MAX: SignedDuration = SignedDuration::from_secs(1);

/// Maximum number of nominations of a pod for one node. The scheduler backs off up to ten seconds
/// between attempts, and a pod is expected on its node for less than a minute.
const TELLS_MAX: u32 = 10;

/// A pod loses its place after [`REFUSALS_MAX`] refused nominations for an untainted node over at
/// least [`REFUSED_MAX`], because similar pods may block its only place. This does not apply to
/// pods spread over hosts: an additional node would keep similar pods from their nodes.
const REFUSALS_MAX: u32 = 3;
const REFUSED_MAX: SignedDuration = SignedDuration::from_secs(2);

/// While more nominations than this are queued, no further ones are computed.
const UNTOLD_MAX: usize = 100;

/// The required action for the nomination of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// No action: the pod is nominated, or must not be nominated.
    Nothing,
    /// Wait: the nomination is in flight, or the watch does not show it yet.
    Answer { again: bool },
    /// The first nomination.
    First,
    /// A repeated nomination.
    Again,
}

/// A nomination to send.
struct PendingNomination {
    /// Version of the pod. The scheduler tries pods in the order of their versions.
    version: u64,
    pod: PodKey,
    uid: String,
    node: NodeName,
    claim: ClaimId,
    /// True if the node is untainted, so that the scheduler could have bound the pod.
    open: bool,
}

/// Nominations to send and to remove.
#[derive(Default)]
struct News {
    tells: Vec<PendingNomination>,
    stale: Vec<PodKey>,
    /// Pods that the scheduler does not bind to the nodes of these claims.
    refused: Vec<(ClaimId, PodKey)>,
    /// When the next pod may be added to `refused`.
    due: Option<Timestamp>,
}

impl Nominations {
    /// Returns whether the engine nominates nodes for pending pods.
    pub(super) fn is_nominating(&self, cx: &Context) -> bool {
        cx.state.cluster.placement_hints == PlacementHints::On
            && !self.denied.is_denied()
            && cx.is_managing()
    }

    /// Returns the pods whose nomination is outdated.
    fn outdated_nominations(
        &self,
        cx: &Context,
        wanted: &HashSet<&PodKey>,
        now: Timestamp,
    ) -> Vec<PodKey> {
        let stale = self.pending.iter().filter(|(key, nomination)| {
            let free = !nomination.out && now.duration_since(nomination.at) >= SHOWN_MAX;
            let is_outdated =
                nomination.here && free && nomination.tells <= TELLS_MAX && !wanted.contains(key);
            // The scheduler may have set the nomination, because it preempts pods on the node for
            // this pod or a different one.
            is_outdated && !cx.state.objects.has_terminating_pods(nomination.node.as_str())
        });
        stale.map(|(key, _)| key.clone()).collect()
    }

    /// Returns the required action for each pod of a node, in the scheduler's order.
    ///
    /// The scheduler counts nominated pods as running on a node when it checks topology spread. If
    /// more pods were nominated than the skew permits, no pod would fit. The remaining pods are
    /// nominated after the first ones are bound.
    fn needed_actions<'p>(
        &self,
        pods: &[&'p Pod],
        node: &NodeName,
        now: Timestamp,
    ) -> Vec<(&'p Pod, Need)> {
        let mut needs: Vec<(&Pod, Need)> =
            pods.iter().map(|pod| (*pod, self.needed_action(pod, node, now))).collect();
        needs.sort_by_key(|(pod, _)| pod.version);
        let mut alike: BTreeMap<(&str, &Labels), u32> = BTreeMap::new();
        for (pod, need) in &needs {
            if matches!(need, Need::Nothing | Need::Answer { .. }) && max_nominated(pod).is_some() {
                *alike.entry(similarity_key(pod)).or_insert(0) += 1;
            }
        }
        for (pod, need) in &mut needs {
            let Some(max) =
                max_nominated(pod).filter(|_| matches!(need, Need::First | Need::Again))
            else {
                continue;
            };
            let nominated = alike.entry(similarity_key(pod)).or_insert(0);
            if *nominated < max {
                *nominated += 1;
            } else {
                *need = Need::Nothing;
            }
        }
        needs
    }

    fn needed_action(&self, pod: &Pod, node: &NodeName, now: Timestamp) -> Need {
        let nomination = self.pending.get(&pod.key).filter(|nomination| nomination.node == *node);
        match nomination {
            Some(nomination) if nomination.out => nomination.awaited_action(),
            // A nomination by a different client must not be changed.
            _ if pod.nominated_node.is_some() => Need::Nothing,
            None => Need::First,
            Some(nomination) if nomination.tells >= TELLS_MAX => Need::Nothing,
            Some(nomination)
                if nomination.shown || now.duration_since(nomination.at) >= SHOWN_MAX =>
            {
                Need::Again
            }
            // The scheduler does not see the nomination before this watch shows it.
            Some(nomination) => nomination.awaited_action(),
        }
    }

    fn send_nomination(&mut self, cx: &mut Context, tell: PendingNomination, now: Timestamp) {
        let PendingNomination { pod, uid, node, .. } = tell;
        let known = self.pending.get(&pod).filter(|nomination| nomination.node == node);
        let tells = known.map_or(0, |nomination| nomination.tells) + 1;
        let refused = known
            .filter(|_| tell.open)
            .map(|nomination| nomination.refused.map_or((now, 1), |(at, times)| (at, times + 1)));
        let nomination = Nomination {
            node: node.clone(),
            uid: uid.clone(),
            out: true,
            at: now,
            here: false,
            shown: false,
            tells,
            refused,
        };
        self.pending.insert(pod.clone(), nomination);
        let purpose = CommandPurpose::Nominate(pod.clone());
        cx.outbox.queue_command(Command::Nominate { pod, uid, node }, purpose, now);
    }

    fn clear_nomination(&mut self, cx: &mut Context, pod: PodKey, now: Timestamp) {
        let Some(nomination) = self.pending.get_mut(&pod) else {
            return;
        };
        (nomination.out, nomination.at) = (true, now);
        nomination.tells += 1;
        let (uid, node) = (nomination.uid.clone(), nomination.node.clone());
        let purpose = CommandPurpose::ClearNomination(pod.clone());
        cx.outbox.queue_command(Command::ClearNomination { pod, uid, node }, purpose, now);
    }

    /// Handles the result of a nomination.
    pub(super) fn on_nomination_result(
        &mut self,
        cx: &mut Context,
        pod: &PodKey,
        result: &CommandResult,
        now: Timestamp,
    ) {
        if let Some(nomination) = self.pending.get_mut(pod) {
            (nomination.out, nomination.at) = (false, now);
        }
        match result.failure() {
            Some(FailureKind::Denied) if !self.denied.is_denied() => {
                self.denied.deny_at(now);
                let withdrawn = cx
                    .outbox
                    .withdraw_queued(|_, purpose| matches!(purpose, CommandPurpose::Nominate(_)));
                for (_, purpose) in withdrawn {
                    if let CommandPurpose::Nominate(pod) = purpose {
                        self.pending.remove(&pod);
                    }
                }
            }
            // The command was not sent.
            Some(FailureKind::Withdrawn) => drop(self.pending.remove(pod)),
            _ => {}
        }
    }

    /// Handles the result of removing a nomination.
    pub(super) fn on_nomination_cleared(
        &mut self,
        pod: &PodKey,
        result: &CommandResult,
        now: Timestamp,
    ) {
        if matches!(result.failure(), None | Some(FailureKind::Conflict | FailureKind::Gone)) {
            self.pending.remove(pod);
        } else if let Some(nomination) = self.pending.get_mut(pod) {
            (nomination.out, nomination.at) = (false, now);
        }
    }

    /// Returns whether the node remains tainted until its pods are nominated.
    pub(super) fn waits_for_nominations(&self, cx: &Context, claim: &NodeClaim) -> bool {
        self.is_nominating(cx) && cx.state.pods_of(claim).next().is_some()
    }
}

/// Nominates nodes for pending pods, and removes outdated nominations.
pub(super) fn send_nominations(
    cx: &mut Context,
    consolidation: &Consolidation,
    nominations: &mut Nominations,
    now: Timestamp,
) {
    if cx.outbox.pending_nominations() > UNTOLD_MAX {
        return;
    }
    let pods = &cx.state.objects.pods;
    nominations.pending.retain(|key, nomination| {
        let pod = pods.get(key).filter(|pod| pod.uid == nomination.uid);
        nomination.here =
            pod.is_some_and(|pod| pod.nominated_node.as_ref() == Some(&nomination.node));
        nomination.shown |= nomination.here;
        nomination.out || pod.is_some_and(Pod::is_waiting)
    });
    if !nominations.is_nominating(cx) {
        nominations.untaint_groups.clear();
        return;
    }
    let unseen =
        nominations.pending.values().filter(|nomination| !nomination.out && !nomination.shown);
    let seen = unseen.filter_map(|nomination| nomination.at.checked_add(SHOWN_MAX).ok());
    cx.outbox.wake_at(seen.filter(|at| *at > now).min(), "check the nominations of pods");
    let (groups, mut changes) = pending_changes(cx, consolidation, nominations, now);
    nominations.untaint_groups = groups;
    changes
        .tells
        .sort_unstable_by(|one, other| (one.version, &one.pod).cmp(&(other.version, &other.pod)));
    for tell in changes.tells {
        let progress = cx.progress.entry(tell.claim.clone()).or_default();
        progress.hinting.get_or_insert(now);
        nominations.send_nomination(cx, tell, now);
    }
    for pod in changes.stale {
        nominations.clear_nomination(cx, pod, now);
    }
    for (claim, pod) in changes.refused {
        if let Some(claim) = cx.state.ledger.claims.get_mut(&claim) {
            claim.pods.remove(&pod);
        }
    }
    cx.outbox.wake_at(changes.due, "a node has rejected a pod");
}

/// Returns the key of the nodes that are untainted with this one: their plan and wave.
fn group_of(cx: &Context, claim: &NodeClaim) -> GroupKey {
    let id = claim.record.command_id.clone();
    (id, cx.waves.wave_start(&claim.record.id))
}

/// Returns the groups of tainted nodes, and the nominations to send and to remove.
fn pending_changes(
    cx: &Context,
    consolidation: &Consolidation,
    nominations: &Nominations,
    now: Timestamp,
) -> (BTreeMap<GroupKey, OpeningGroup>, News) {
    let mut groups: BTreeMap<GroupKey, OpeningGroup> = BTreeMap::new();
    let mut wanted: HashSet<&PodKey> = HashSet::new();
    let mut ready = Vec::new();
    for (claim, pods) in cx.state.expected_by_claim(now) {
        wanted.extend(pods.iter().map(|pod| &pod.key));
        // Pods that are still to be evicted are bound to their old nodes.
        let pods: Vec<&Pod> = pods.into_iter().filter(|pod| pod.is_waiting()).collect();
        let node = cx.node_of(claim);
        // Nominations wait until the node's replacement pods exist.
        let well = node.filter(|node| {
            node.ready && !replacement_pods::is_held(cx, consolidation, nominations, claim, now)
        });
        let needs =
            well.map_or(Vec::new(), |node| nominations.needed_actions(&pods, &node.name, now));
        let closed =
            claim.phase < ClaimPhase::Initialized && node.is_none_or(Node::has_unregistered_taint);
        if closed {
            let key = group_of(cx, claim);
            let known = nominations.untaint_groups.get(&key);
            let group = groups.entry(key).or_insert_with(|| OpeningGroup {
                since: known.and_then(|group| group.since),
                told: known.and_then(|group| group.told),
                ..OpeningGroup::default()
            });
            group.since = group.since.or(well.map(|_| now));
            group.coming |= well.is_none();
            for (_, need) in &needs {
                group.telling |= need.is_first();
                group.bereft |= !need.is_first() && *need != Need::Nothing;
            }
        }
        ready.extend(well.map(|node| (claim, node, closed, needs)));
    }
    for group in groups.values_mut().filter(|group| !group.coming && !group.telling) {
        group.told.get_or_insert(now);
    }
    let mut changes = News::default();
    for (claim, node, closed, needs) in ready {
        let group = groups.get(&group_of(cx, claim)).filter(|_| closed);
        // While other pods are nominated, the scheduler may retry this pod once more.
        let again = group.is_none_or(|group| !group.is_nominating(now));
        for (pod, need) in needs {
            let (key, id) = (pod.key.clone(), claim.record.id.clone());
            let refused = nominations.pending.get(&key).filter(|nomination| {
                !closed && nomination.node == node.name && !is_spread_over_hosts(pod)
            });
            let since = refused.and_then(Nomination::refused_since);
            let ends = since.and_then(|at| at.checked_add(REFUSED_MAX).ok());
            if ends.is_some_and(|at| at <= now) {
                changes.refused.push((id, key));
                continue;
            }
            changes.due = changes.due.into_iter().chain(ends).min();
            if need == Need::First || (need == Need::Again && again) {
                changes.tells.push(PendingNomination {
                    version: pod.version,
                    pod: key,
                    uid: pod.uid.clone(),
                    node: node.name.clone(),
                    claim: id,
                    open: !closed,
                });
            }
        }
    }
    changes.stale = nominations.outdated_nominations(cx, &wanted, now);
    (groups, changes)
}

/// Returns whether a tainted node may be untainted: its pods are nominated, so that the
/// scheduler reserves its capacity, and so are the pods of the other nodes of its plan.
pub(super) fn may_untaint(
    cx: &mut Context,
    consolidation: &Consolidation,
    nominations: &Nominations,
    id: &ClaimId,
    now: Timestamp,
) -> bool {
    let Some((claim, node)) = cx.claim_and_node(id) else {
        return false;
    };
    let held = replacement_pods::is_held(cx, consolidation, nominations, claim, now);
    if !held && !nominations.waits_for_nominations(cx, claim) {
        return true;
    }
    if !node.ready {
        // Components that the node needs to become ready may have to run on it without
        // tolerating the taint.
        let latest = claim.since.checked_add(CLOSED_MAX).unwrap_or(now);
        if latest > now {
            cx.outbox.wake_at(latest, "untaint a node");
        }
        return latest <= now;
    }
    if held {
        replacement_pods::recheck_held_nodes(cx, now);
        return false;
    }
    let group = nominations.untaint_groups.get(&group_of(cx, claim));
    if let Some(at) = group.and_then(|group| group.wait_until(now)) {
        cx.outbox.wake_at(at, "untaint the nodes of one plan together");
        return false;
    }
    let pods: Vec<&Pod> = cx.state.pods_of(claim).collect();
    let needs = nominations.needed_actions(&pods, &node.name, now);
    // A nomination removed now does not keep the node tainted while the other nodes are
    // untainted.
    if !needs.iter().any(|(_, need)| need.is_first()) {
        return true;
    }
    // If many other pods are being nominated, the time for these pods has not started.
    let progress = cx.progress.entry(id.clone()).or_default();
    let begun = *progress.hinting.get_or_insert(now);
    let latest = begun.checked_add(HINTS_MAX).ok().filter(|at| now < *at);
    cx.outbox.wake_at(latest, "nominate nodes for pods");
    latest.is_none()
}

/// Returns the namespace and labels of a pod. Pods with the same namespace and labels are similar.
fn similarity_key(pod: &Pod) -> (&str, &Labels) {
    (&pod.key.namespace, &pod.labels)
}

/// Returns whether a pod has a hard topology spread over hosts.
fn is_spread_over_hosts(pod: &Pod) -> bool {
    let mut hard = pod.spread.iter().filter(|spread| spread.is_hard);
    hard.any(|spread| spread.topology_key == HOSTNAME)
}

/// Returns the number of similar pods, including this one, that may be nominated for one node.
/// `None` if the pod has no hard topology spread.
fn max_nominated(pod: &Pod) -> Option<u32> {
    let hard = pod.spread.iter().filter(|spread| spread.is_hard);
    hard.map(|spread| spread.max_skew.max(1)).min()
}

impl Need {
    /// Returns whether the pod is not yet nominated for the node.
    fn is_first(self) -> bool {
        matches!(self, Self::First | Self::Answer { again: false })
    }
}

impl Nomination {
    fn awaited_action(&self) -> Need {
        Need::Answer { again: self.tells > 1 }
    }

    /// Returns since when the scheduler has not bound the pod to its untainted node.
    fn refused_since(&self) -> Option<Timestamp> {
        let refused = self.refused.filter(|(_, times)| *times >= REFUSALS_MAX);
        refused.map(|(since, _)| since)
    }
}

impl OpeningGroup {
    /// Returns whether the group waits for nodes or for first nominations.
    fn is_nominating(&self, now: Timestamp) -> bool {
        let without_removals = Self { bereft: false, ..*self };
        without_removals.wait_until(now).is_some()
    }

    /// Returns until when ready nodes wait for the other nodes of the group. `None` if the nodes do
    /// not wait. If nodes were untainted one by one, the scheduler would bind pods to nodes that
    /// were planned for other pods.
    fn wait_until(&self, now: Timestamp) -> Option<Timestamp> {
        let waits = [
            (self.coming, self.since, TOGETHER_MAX),
            (self.telling, self.since, HINTS_MAX),
            (self.bereft, self.told, AGAIN_MAX),
        ];
        waits
            .into_iter()
            .filter_map(|(waits, from, wait)| from.filter(|_| waits)?.checked_add(wait).ok())
            .filter(|at| *at > now)
            .max()
    }
}
