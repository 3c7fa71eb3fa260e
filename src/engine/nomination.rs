//! Pods are told of their node before it opens, and the nodes of one plan open together.
//! It must not know how a node becomes ready, nor why pods were planned onto it.
//!
//! A scheduler looks at all waiting pods as soon as one node opens, and takes what it was told away
//! from a pod whose node is still closed. So all pods of a plan are told first, those that were
//! bereft of it are told again, and then all its nodes open at once.

use std::collections::{BTreeMap, HashSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::{Command, CommandResult, FailureKind};
use crate::engine::in_flight::{CommandPurpose, GroupKey, Nomination, OpeningGroup};
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, NodeName, PodKey};
use crate::model::labels::{HOSTNAME, Labels};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::state::node_claims::NodeClaim;

/// A registered node is kept closed for its pods' sake for at most this long.
const CLOSED_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Telling pods of their node may take this long; then the node opens all the same.
const HINTS_MAX: SignedDuration = SignedDuration::from_secs(10);

/// Once all pods of a plan have been told, those that were bereft of it may be told again for this
/// long. The scheduler may look at pods all the time: waiting longer, others are bereft.
const AGAIN_MAX: SignedDuration = SignedDuration::from_millis(250);

/// A node that is ready waits this long for others of its plan. Longer, and pods that could run
/// would wait for one machine that boots slowly.
const TOGETHER_MAX: SignedDuration = SignedDuration::from_secs(5);

/// The watch may be so far behind an answer. What it does not show by then was taken away at once.
const SHOWN_MAX: SignedDuration = SignedDuration::from_secs(1);

/// A pod is told of one node so often. A scheduler that looks at it again and again backs off up to
/// ten seconds each time, and a pod is expected on its node for less than a minute.
const TELLS_MAX: u32 = 10;

/// A pod that the scheduler has refused so often since its node is open, and for so long, gets
/// another place: others of its kind may be where it could not have gone any more. Not one that is
/// spread over hosts: one host more would keep all others of its kind from theirs.
const REFUSALS_MAX: u32 = 3;
const REFUSED_MAX: SignedDuration = SignedDuration::from_secs(2);

/// While more pods than this are about to be told, it is not decided anew who else is.
const UNTOLD_MAX: usize = 100;

/// What is to be done about telling a pod of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// It has been told, or is not to be told.
    Nothing,
    /// The answer is out, or the watch does not show it yet; maybe it is not the first.
    Answer { again: bool },
    /// It is to be told.
    First,
    /// It is to be told again.
    Again,
}

/// A pod that is to be told of its node.
struct PendingNomination {
    /// Its version: the scheduler looks at pods in this order.
    version: u64,
    pod: PodKey,
    uid: String,
    node: NodeName,
    claim: ClaimId,
    /// Whether the scheduler could have bound it there already.
    open: bool,
}

/// What is to be told, and what is to be taken back.
#[derive(Default)]
struct News {
    tells: Vec<PendingNomination>,
    stale: Vec<PodKey>,
    /// Pods that the scheduler does not take to the nodes of these claims.
    refused: Vec<(ClaimId, PodKey)>,
    /// When there may be the next of these.
    due: Option<Timestamp>,
}

impl Engine {
    /// Tells waiting pods of the nodes they are planned for, and takes back what is planned no
    /// more.
    pub(super) fn tell_pods(&mut self, now: Timestamp) {
        if self.untold() > UNTOLD_MAX {
            return;
        }
        let pods = &self.state.objects.pods;
        self.hints.retain(|key, hint| {
            let pod = pods.get(key).filter(|pod| pod.uid == hint.uid);
            hint.here = pod.is_some_and(|pod| pod.nominated_node.as_ref() == Some(&hint.node));
            hint.shown |= hint.here;
            hint.out || pod.is_some_and(Pod::is_waiting)
        });
        if !self.gives_hints() {
            self.groups.clear();
            return;
        }
        let unseen = self.hints.values().filter(|own| !own.out && !own.shown);
        let seen = unseen.filter_map(|own| own.at.checked_add(SHOWN_MAX).ok());
        if let Some(at) = seen.filter(|at| *at > now).min() {
            self.wake_at(at, "what pods were told is to be seen");
        }
        let (groups, mut news) = self.to_tell(now);
        self.groups = groups;
        news.tells.sort_unstable_by(|one, other| {
            (one.version, &one.pod).cmp(&(other.version, &other.pod))
        });
        for tell in news.tells {
            let work = self.works.entry(tell.claim.clone()).or_default();
            work.hinting.get_or_insert(now);
            self.tell(tell, now);
        }
        for pod in news.stale {
            self.take_back(pod, now);
        }
        for (claim, pod) in news.refused {
            if let Some(claim) = self.state.ledger.claims.get_mut(&claim) {
                claim.pods.remove(&pod);
            }
        }
        if let Some(at) = news.due {
            self.wake_at(at, "a pod is refused by its node");
        }
    }

    /// The nodes that one opens with: those of its plan, and of its wave.
    fn group_of(&self, claim: &NodeClaim) -> GroupKey {
        let id = claim.record.command_id.clone();
        (id, self.waves.since(&claim.record.id))
    }

    /// Nodes that are still closed, pods to be told, and those that were told what is planned no
    /// more.
    fn to_tell(&self, now: Timestamp) -> (BTreeMap<GroupKey, OpeningGroup>, News) {
        let mut groups: BTreeMap<GroupKey, OpeningGroup> = BTreeMap::new();
        let mut wanted: HashSet<&PodKey> = HashSet::new();
        let mut ready = Vec::new();
        for (claim, pods) in self.state.expected_by_claim(now) {
            wanted.extend(pods.iter().map(|pod| &pod.key));
            // Those that will lose their place elsewhere have one as yet.
            let pods: Vec<&Pod> = pods.into_iter().filter(|pod| pod.is_waiting()).collect();
            let node = self.node_of(claim);
            // Pods that are to come wait for the others that come there.
            let well = node.filter(|node| node.ready && !self.is_held(claim, now));
            let needs = well.map_or(Vec::new(), |node| self.needs(&pods, &node.name, now));
            let closed = claim.phase < ClaimPhase::Initialized
                && node.is_none_or(Node::has_unregistered_taint);
            if closed {
                let key = self.group_of(claim);
                let known = self.groups.get(&key);
                let group = groups.entry(key).or_insert_with(|| OpeningGroup {
                    since: known.and_then(|own| own.since),
                    told: known.and_then(|own| own.told),
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
        for group in groups
            .values_mut()
            .filter(|own| !own.coming && !own.telling)
        {
            group.told.get_or_insert(now);
        }
        let mut news = News::default();
        for (claim, node, closed, needs) in ready {
            let group = groups.get(&self.group_of(claim)).filter(|_| closed);
            // While others are told, the scheduler may look at a pod once more.
            let again = group.is_none_or(|own| !own.is_telling(now));
            for (pod, need) in needs {
                let (key, id) = (pod.key.clone(), claim.record.id.clone());
                let refused = self
                    .hints
                    .get(&key)
                    .filter(|own| !closed && own.node == node.name && !over_hosts(pod));
                let since = refused.and_then(Nomination::refused_since);
                let over = since.and_then(|at| at.checked_add(REFUSED_MAX).ok());
                if over.is_some_and(|at| at <= now) {
                    news.refused.push((id, key));
                    continue;
                }
                news.due = news.due.into_iter().chain(over).min();
                if need == Need::First || (need == Need::Again && again) {
                    news.tells.push(PendingNomination {
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
        news.stale = self.stale(&wanted, now);
        (groups, news)
    }

    /// Pods that were told what is planned no more.
    fn stale(&self, wanted: &HashSet<&PodKey>, now: Timestamp) -> Vec<PodKey> {
        let stale = self.hints.iter().filter(|(key, hint)| {
            let free = !hint.out && now.duration_since(hint.at) >= SHOWN_MAX;
            // The scheduler may mean it: it makes room there, for that pod or another.
            let makes_room = || {
                let mut others = self.state.objects.pods_on(hint.node.as_str());
                others.any(|pod| pod.deleting.is_some() && !pod.is_terminal())
            };
            let over = hint.here && free && hint.tells <= TELLS_MAX && !wanted.contains(key);
            over && !makes_room()
        });
        stale.map(|(key, _)| key.clone()).collect()
    }

    /// What is to be done about each pod of one node, those that have to be first in front.
    ///
    /// A scheduler counts pods that are told of a node as being there where it looks at that node
    /// for a pod that is spread with them. More of them than may be ahead, and it would find no
    /// place for any: the others are told when these are bound.
    fn needs<'p>(&self, pods: &[&'p Pod], node: &NodeName, now: Timestamp) -> Vec<(&'p Pod, Need)> {
        let mut needs: Vec<(&Pod, Need)> = pods
            .iter()
            .map(|pod| (*pod, self.need(pod, node, now)))
            .collect();
        needs.sort_by_key(|(pod, _)| pod.version);
        let mut alike: BTreeMap<(&str, &Labels), u32> = BTreeMap::new();
        let kin = |pod: &'p Pod| (pod.key.namespace.as_str(), &pod.labels);
        for (pod, need) in &needs {
            if matches!(need, Need::Nothing | Need::Answer { .. }) && ahead_max(pod).is_some() {
                *alike.entry(kin(pod)).or_insert(0) += 1;
            }
        }
        for (pod, need) in &mut needs {
            let Some(max) = ahead_max(pod).filter(|_| matches!(need, Need::First | Need::Again))
            else {
                continue;
            };
            let told = alike.entry(kin(pod)).or_insert(0);
            if *told < max {
                *told += 1;
            } else {
                *need = Need::Nothing;
            }
        }
        needs
    }

    fn need(&self, pod: &Pod, node: &NodeName, now: Timestamp) -> Need {
        let hint = self.hints.get(&pod.key).filter(|hint| hint.node == *node);
        match hint {
            Some(hint) if hint.out => hint.answer(),
            // What another says of it is not ours to change.
            _ if pod.nominated_node.is_some() => Need::Nothing,
            None => Need::First,
            Some(hint) if hint.tells >= TELLS_MAX => Need::Nothing,
            Some(hint) if hint.shown || now.duration_since(hint.at) >= SHOWN_MAX => Need::Again,
            // The scheduler sees what it was told no sooner than we do.
            Some(hint) => hint.answer(),
        }
    }

    fn tell(&mut self, tell: PendingNomination, now: Timestamp) {
        let PendingNomination { pod, uid, node, .. } = tell;
        let known = self.hints.get(&pod).filter(|hint| hint.node == node);
        let tells = known.map_or(0, |hint| hint.tells) + 1;
        let refused = known.filter(|_| tell.open);
        let refused = refused.map(|hint| hint.refused.map_or((now, 1), |(at, n)| (at, n + 1)));
        let hint = Nomination {
            node: node.clone(),
            uid: uid.clone(),
            out: true,
            at: now,
            here: false,
            shown: false,
            tells,
            refused,
        };
        self.hints.insert(pod.clone(), hint);
        let flight = CommandPurpose::Nominate(pod.clone());
        self.issue(Command::Nominate { pod, uid, node }, flight, now);
    }

    fn take_back(&mut self, pod: PodKey, now: Timestamp) {
        let Some(hint) = self.hints.get_mut(&pod) else {
            return;
        };
        (hint.out, hint.at) = (true, now);
        hint.tells += 1;
        let (uid, node) = (hint.uid.clone(), hint.node.clone());
        let flight = CommandPurpose::ClearNomination(pod.clone());
        self.issue(Command::ClearNomination { pod, uid, node }, flight, now);
    }

    /// A pod has been told, or not.
    pub(super) fn hinted(&mut self, pod: &PodKey, answer: &CommandResult, now: Timestamp) {
        if let Some(hint) = self.hints.get_mut(pod) {
            (hint.out, hint.at) = (false, now);
        }
        match answer {
            CommandResult::Failed {
                kind: FailureKind::Denied,
                ..
            } if !self.hints_denied.holds() => {
                self.hints_denied.set(now);
                let why = "pods may not be told of their nodes";
                self.withdraw(why, |own| matches!(own, Command::Nominate { .. }), now);
            }
            // Nobody has told it.
            CommandResult::Failed {
                kind: FailureKind::Withdrawn,
                ..
            } => drop(self.hints.remove(pod)),
            _ => {}
        }
    }

    /// What a pod was told has been taken back, or not.
    pub(super) fn unhinted(&mut self, pod: &PodKey, answer: &CommandResult, now: Timestamp) {
        let over = !matches!(answer, CommandResult::Failed { kind, .. } if !matches!(
            kind,
            FailureKind::Conflict | FailureKind::Gone
        ));
        if over {
            self.hints.remove(pod);
        } else if let Some(hint) = self.hints.get_mut(pod) {
            (hint.out, hint.at) = (false, now);
        }
    }

    /// Whether the node is to be kept closed until its pods have been told of it.
    pub(super) fn wants_hints(&self, claim: &NodeClaim) -> bool {
        self.gives_hints() && self.state.pods_of(claim).next().is_some()
    }

    /// Whether a node that is still closed may open to pods: its own have been told of it, so that
    /// the scheduler keeps their room, and so have those of the others of its plan.
    pub(super) fn may_open(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let claim = self.state.ledger.claims.get(id);
        let Some((claim, node)) = claim.and_then(|own| Some((own, self.node_of(own)?))) else {
            return false;
        };
        let held = self.is_held(claim, now);
        if !held && !self.wants_hints(claim) {
            return true;
        }
        if !node.ready {
            // What a node needs to get ready may have to run on it, and not tolerate the taint.
            let latest = claim.since.checked_add(CLOSED_MAX).unwrap_or(now);
            if latest > now {
                self.wake_at(latest, "a node is to be opened");
            }
            return latest <= now;
        }
        if held {
            self.look_at_held(now);
            return false;
        }
        let group = self.groups.get(&self.group_of(claim));
        if let Some(at) = group.and_then(|own| own.until(now)) {
            self.wake_at(at, "nodes of one plan open together");
            return false;
        }
        let pods: Vec<&Pod> = self.state.pods_of(claim).collect();
        let needs = self.needs(&pods, &node.name, now);
        // Whoever is bereft now does not keep it closed while the others open.
        if !needs.iter().any(|(_, need)| need.is_first()) {
            return true;
        }
        // While many others are told, nobody has begun with these.
        let work = self.works.entry(id.clone()).or_default();
        let begun = *work.hinting.get_or_insert(now);
        let latest = begun.checked_add(HINTS_MAX).ok().filter(|at| now < *at);
        if let Some(at) = latest {
            self.wake_at(at, "pods are told of their node");
        }
        latest.is_none()
    }
}

/// Whether a pod has to be spread over hosts.
fn over_hosts(pod: &Pod) -> bool {
    let mut hard = pod.spread.iter().filter(|own| own.is_hard);
    hard.any(|own| own.topology_key == HOSTNAME)
}

/// How many pods like this one, itself included, may be told of one node, if it is spread.
fn ahead_max(pod: &Pod) -> Option<u32> {
    let hard = pod.spread.iter().filter(|own| own.is_hard);
    hard.map(|own| own.max_skew.max(1)).min()
}

impl Need {
    /// Whether the pod has not been told of the node yet.
    fn is_first(self) -> bool {
        matches!(self, Self::First | Self::Answer { again: false })
    }
}

impl Nomination {
    fn answer(&self) -> Need {
        Need::Answer {
            again: self.tells > 1,
        }
    }

    /// Since when the scheduler has not taken the pod to its node, although it is open.
    fn refused_since(&self) -> Option<Timestamp> {
        let refused = self.refused.filter(|(_, times)| *times >= REFUSALS_MAX);
        refused.map(|(since, _)| since)
    }
}

impl OpeningGroup {
    /// Whether nodes are waited for, or pods that are told for the first time.
    fn is_telling(&self, now: Timestamp) -> bool {
        let own = Self {
            bereft: false,
            ..*self
        };
        own.until(now).is_some()
    }

    /// Until when its nodes that are ready wait for the others at most; none if they do not. While
    /// they open one by one the scheduler is at work already, and each pod that it looks at before
    /// its own node is open goes where another was to be.
    fn until(&self, now: Timestamp) -> Option<Timestamp> {
        let after = |from: Option<Timestamp>, wait, waits: bool| {
            let until = from.and_then(|at| at.checked_add(wait).ok());
            until.filter(|_| waits)
        };
        let until = after(self.since, TOGETHER_MAX, self.coming)
            .max(after(self.since, HINTS_MAX, self.telling))
            .max(after(self.told, AGAIN_MAX, self.bereft));
        until.filter(|at| *at > now)
    }
}
