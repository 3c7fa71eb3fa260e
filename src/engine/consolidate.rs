//! When the whole cluster is weighed for what it could cost, and how nodes that can be had for
//! less begin to leave.
//! It must not know which these are.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::event::Event;
use crate::engine::report::Report;
use crate::model::claim::Phase;
use crate::model::id::{ClaimId, PodKey};
use crate::model::instance::Price;
use crate::model::node::Node;
use crate::model::object::{Kind, Object};
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::plan::{self, Plan};
use crate::state::ledger::Claim;

/// Pods that come and go tend to do so together: the cluster is weighed once this long nothing has
/// changed in it, or at the latest so long after the first change.
const CALM: SignedDuration = SignedDuration::from_secs(2);
const CALM_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Two weighings are at least this far apart: twice as far after each that found nothing, up to
/// five minutes, and further where there are many nodes, since it may take a second for thousands.
const APART: SignedDuration = SignedDuration::from_secs(5);
const APART_DOUBLED_MAX: u32 = 6;

/// When one pod in so many has left since, it does not matter how many weighings found nothing.
const LEFT_MANY: usize = 50;
const APART_EACH: SignedDuration = SignedDuration::from_millis(10);

/// Prices, windows and what is held down change by themselves.
const REGULARLY: SignedDuration = SignedDuration::from_mins(5);

/// Nodes that were to leave together are waited for, for at most this long: what a move comes to is
/// not known before.
const MOVING_MAX: SignedDuration = SignedDuration::from_secs(30);

/// A move has come true that has saved this share of what it was to, with as many pods as then but
/// for one in so many. One that did not counts for this long.
const TRUE_SHARE: f64 = 0.5;
const SAME_PODS: usize = 20;
const VAIN_MAX: SignedDuration = SignedDuration::from_mins(30);

/// What a move was to come to.
#[derive(Clone, Copy, Debug)]
struct Promise {
    at: Timestamp,
    /// What the cluster cost before, and what was to be saved of it.
    before: f64,
    saved: f64,
    pods: usize,
}

/// What has happened since the cluster was last weighed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weighing {
    /// When it was.
    last: Option<Timestamp>,
    /// How many found nothing since one did.
    vain: u32,
    /// How many pods have left their nodes since.
    left: usize,
    /// When something first and last changed since.
    stirred: Option<(Timestamp, Timestamp)>,
    /// What the last move was to come to.
    promise: Option<Promise>,
    /// When a move last did not come true.
    vainly: Option<Timestamp>,
}

impl Weighing {
    /// Something changed that may make another cluster cheaper.
    fn stir(&mut self, now: Timestamp) {
        let first = self.stirred.map_or(now, |(first, _)| first);
        self.stirred = Some((first, now));
    }

    /// A pod has left its node.
    fn left(&mut self, pods: usize) {
        self.left += 1;
        if self.left * LEFT_MANY >= pods {
            self.vain = 0;
        }
    }

    /// When the cluster is to be weighed next.
    fn due(&self, nodes: usize) -> Timestamp {
        let Some(last) = self.last else {
            return self
                .stirred
                .map_or(Timestamp::MIN, |own| after(own.1, CALM));
        };
        let nodes = i32::try_from(nodes).unwrap_or(i32::MAX);
        let apart = APART * 2_i32.pow(self.vain.min(APART_DOUBLED_MAX));
        let apart = apart.saturating_add(APART_EACH.checked_mul(nodes).unwrap_or(REGULARLY));
        let calm = |(first, latest)| after(latest, CALM).min(after(first, CALM_MAX));
        let stirred = self.stirred.map(calm).map(|at| at.max(after(last, apart)));
        let regularly = after(last, REGULARLY);
        stirred.map_or(regularly, |at| at.min(regularly))
    }
}

fn after(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}

impl Engine {
    /// Takes note of what may make another cluster cheaper. Pods change often, and hardly ever in
    /// where they are.
    pub(super) fn stirred(&mut self, event: &Event, now: Timestamp) {
        let objects = &self.state.objects;
        let stirs = match event {
            Event::Applied(Object::Pod(pod)) => {
                let place =
                    |pod: &Pod| (pod.node.clone(), pod.is_terminal(), pod.deleting.is_some());
                objects.pods.get(&pod.key).map(place) != Some(place(pod))
            }
            Event::Applied(Object::Node(node)) => {
                let same = |known: &Node| {
                    known.taints == node.taints
                        && known.labels == node.labels
                        && known.annotations == node.annotations
                };
                !objects.nodes.get(&node.name).is_some_and(same)
            }
            Event::Deleted(Kind::Pod, _) => {
                self.weighing.left(objects.pods.len());
                true
            }
            Event::Applied(Object::Pdb(_)) | Event::Deleted(Kind::Node | Kind::Pdb, _) => true,
            _ => false,
        };
        if stirs {
            self.weighing.stir(now);
        }
    }

    /// Weighs the cluster, and lets nodes go that can be had for less. Not while pods wait whose
    /// place nobody has worked out yet.
    pub(super) fn consolidate(&mut self, now: Timestamp) {
        let due = self.weighing.due(self.state.objects.nodes.len());
        if due > now {
            self.wake_at(due, "the cluster is to be weighed");
            return;
        }
        if self.batch.has_new() || self.state.ledger.claims.is_empty() {
            return;
        }
        if let Some(at) = self.moving_until(now) {
            self.wake_at(at, "nodes are to have left together");
            return;
        }
        self.judge(now);
        let plan = plan::consolidate(&self.state.roster(now), &self.state.field(now), now);
        let held = plan.kept.iter();
        let held = held.filter(|own| own.reason == Reason::Underutilized);
        let vain = match plan.retire.is_empty() {
            true if held.clone().any(|own| own.verdict.is_budget()) => self.weighing.vain,
            true => self.weighing.vain.saturating_add(1),
            false => 0,
        };
        self.weighing = Weighing {
            last: Some(now),
            vain,
            left: 0,
            stirred: None,
            ..self.weighing
        };
        if let Some(due) = plan::next_due(&plan.kept) {
            self.weighing.stir(due.checked_sub(CALM).unwrap_or(now));
        }
        let again = self.weighing.due(self.state.objects.nodes.len());
        self.wake_at(again, "the cluster is to be weighed");
        if plan.retire.is_empty() {
            return;
        }
        let claims = plan.retire.iter().filter_map(|own| own.claim.as_ref());
        if !claims
            .clone()
            .any(|own| !self.observed_leaving.contains(own))
        {
            return;
        }
        let before: Price = plan.retire.iter().filter_map(|own| own.price).sum();
        let after = plan::cost(&plan.launches);
        self.weighing.promise = self.manages().then(|| Promise {
            at: now,
            before: self.cost(),
            saved: before.usd_per_h() - after.usd_per_h(),
            pods: self.state.objects.pods.len(),
        });
        self.report(Report::Consolidates {
            nodes: plan.retire.len(),
            claims: plan.launches.len(),
            before,
            after,
        });
        self.begin(plan, now);
    }

    /// Until when nodes are waited for that leave together and have pods to move.
    fn moving_until(&self, now: Timestamp) -> Option<Timestamp> {
        let until = after(self.weighing.promise?.at, MOVING_MAX);
        let mut claims = self.state.ledger.claims.values();
        let moves = claims
            .any(|own| own.leaving == Some(Reason::Underutilized) && own.phase == Phase::Draining);
        Some(until).filter(|at| moves && *at > now)
    }

    /// Learns from what the last move has come to: pods may be where nobody meant them to be, and
    /// nodes be made again for others. Whoever moves them once more then goes round in circles.
    fn judge(&mut self, now: Timestamp) {
        let weighing = &mut self.weighing;
        if weighing.vainly.is_some_and(|at| after(at, VAIN_MAX) <= now) {
            weighing.vainly = None;
            self.state.recent.vain = 0;
        }
        let Some(own) = weighing.promise.take() else {
            return;
        };
        let pods = self.state.objects.pods.len();
        if own.pods.abs_diff(pods) * SAME_PODS > own.pods {
            return;
        }
        if own.before - self.cost() < own.saved * TRUE_SHARE {
            let vain = &mut self.state.recent.vain;
            *vain = vain.saturating_add(1);
            self.weighing.vainly = Some(now);
        }
    }

    /// What all nodes cost that stay.
    fn cost(&self) -> f64 {
        let claims = self.state.ledger.claims.values();
        let stay = claims.filter(|own| own.leaving.is_none());
        let price = |own: &Claim| {
            let instance = own.instance.as_ref()?;
            let offering = self.state.catalog.offering(&instance.offering)?;
            Some(offering.price.usd_per_h())
        };
        stay.filter_map(price).sum()
    }

    /// The nodes are closed, and what comes in their place is made.
    fn begin(&mut self, plan: Plan, now: Timestamp) {
        let claims = plan.retire.iter().filter_map(|own| own.claim.clone());
        let claims: Vec<ClaimId> = claims.collect();
        if !self.manages() {
            self.observed_leaving.extend(claims);
            return;
        }
        for claim in &claims {
            self.retire(claim, Reason::Underutilized, now);
        }
        self.carry_out(plan, Reason::Underutilized.as_str(), now);
        // Their places are known: nobody has to plan for them again.
        let waiting = self.state.waiting(now);
        let waiting: Vec<&PodKey> = waiting.into_iter().map(|pod| &pod.key).collect();
        self.batch.observe(&waiting, now);
        self.batch.planned(now);
    }

    /// Keeps nodes that were to leave since their pods fit elsewhere, where a plan has no place for
    /// them but on yet another node. Returns whether there are any: then the plan is void.
    pub(super) fn keep_needed(&mut self, plan: &Plan, now: Timestamp) -> bool {
        let launched = plan.launches.iter().flat_map(|own| &own.pods);
        let unplaced = plan.unplaced.iter().map(|own| &own.pod);
        let homeless: BTreeSet<&PodKey> = launched.chain(unplaced).collect();
        if homeless.is_empty() {
            return false;
        }
        let claims = self.state.ledger.claims.iter();
        let waits = |id: &ClaimId| !self.works.get(id).is_some_and(|own| own.drain.released);
        let leaving =
            claims.filter(|(id, own)| own.leaving == Some(Reason::Underutilized) && waits(id));
        let needed = leaving.filter(|(_, own)| {
            let mut movers = self.state.movers_of(own, now);
            movers.any(|pod| homeless.contains(&pod.key))
        });
        let needed: Vec<ClaimId> = needed.map(|(id, _)| id.clone()).collect();
        for id in &needed {
            self.withdraw_node(
                id,
                "its pods have no place elsewhere any more".to_owned(),
                now,
            );
        }
        !needed.is_empty()
    }
}
