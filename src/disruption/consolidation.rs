//! Which nodes cost more than their pods need: all of them are weighed as one problem, and those
//! leave together whose pods fit elsewhere, or on something cheaper, for the least disruption.
//! It must not know how a plan is carried out, nor the other reasons for leaving.
//!
//! What all the pods would cost if they were planned afresh says what each node wastes. The
//! most wasteful leave first, as many as it takes to save nearly all that can be saved; whoever
//! leaves for nothing stays. Why so, and not one node after another:
//! docs/decisions/027-consolidation.md.

mod removal_candidate;
pub mod search;
pub mod replacement;
pub mod components;
pub mod keep_zones;
pub mod outcome;

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};
use jiff::Timestamp;

use crate::disruption::balanced::Balance;
use crate::disruption::budgets::Budgets;
use crate::disruption::consolidation::components::{LeavingNode, ReplacementGroups};
use crate::disruption::consolidation::keep_zones::stay_in_zones;
use crate::disruption::consolidation::outcome::{RemovalOutcome, SAVED_MIN};
use crate::disruption::consolidation::removal_candidate::{RemovalCandidate, leaver};
use crate::disruption::consolidation::replacement::{affordable, offers};
use crate::disruption::consolidation::search::{RemovalSearch, is_enough};
use crate::disruption::eligibility::closed;
use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::model::id::{NodeName, PodKey};
use crate::model::instance::{CapacityType, OfferingKey, Price};
use crate::model::labels::CAPACITY_TYPE;
use crate::model::pool::Reason;
use crate::scheduling::solution_cost::{NodePurchase, Size, SolutionCost};
use crate::scheduling::{NewNodeClaim, weigh};
use crate::state::candidates::DisruptionView;
use crate::state::snapshot::NodeRef;
use crate::state::what_if::WhatIf;

/// Nodes that leave together, and what comes in their place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsolidationAction {
    /// The nodes.
    pub nodes: Vec<NodeName>,
    /// Nodes to be made for their pods, each cheaper than what leaves, whatever it is launched as.
    pub claims: Vec<NewNodeClaim>,
    /// Pods that nodes take which are there.
    pub placed: Vec<(NodeRef, Vec<PodKey>)>,
    /// What that saves, in $/h.
    pub saves: f64,
}

/// Whatever is launched in their place costs less than they do by this share at least.
const CHEAPER_MIN: f64 = 0.03;

/// Sets of nodes are tried until so many times as many pods were planned as may move; a small set
/// counts for this share of all.
const EFFORT_MAX: f64 = 1.0;
const EFFORT_MIN: f64 = 0.125;

/// It is another plan to see whether nodes may stay that others like them replace: of more nodes
/// that leave, a few such ones hardly matter.
const ALIKE_MAX: usize = 32;

/// Rounds in which nodes are left out whose leaving saves nothing, or whose pods find no place.
const ROUNDS_MAX: usize = 4;

/// The nodes that may leave now since their pods can be had for less, and why the others stay.
pub fn consolidate<'a>(
    roster: &'a DisruptionView<'a>,
    field: &WhatIf<'a>,
    budgets: &mut Budgets<'_>,
    now: Timestamp,
) -> (Option<ConsolidationAction>, Vec<RetainedNode>) {
    let mut kept = Vec::new();
    let mut leavers: Vec<RemovalCandidate<'_>> = Vec::new();
    for candidate in roster
        .candidates
        .iter()
        .filter(|own| !budgets.has_let_go(own))
    {
        match leaver(candidate, roster, field, now) {
            Ok(own) => leavers.push(own),
            Err(verdict) => kept.push(RetainedNode::new(candidate, Reason::Underutilized, verdict)),
        }
    }
    let yard = Search {
        field,
        now,
        node_price: roster.cluster.scheduling.node_price.usd_per_h(),
        balance: Balance::new(roster),
        roster,
        closed: closed(roster, field, now),
    };
    // Where a pool finds the whole not worth it, or nothing may be launched in a node's place,
    // others may without these.
    let stays = |(own, verdict): &(RemovalCandidate<'_>, Verdict)| {
        let inflexible = matches!(verdict, Verdict::Inflexible { .. });
        inflexible || yard.balance.weighs(own.candidate)
    };
    let (mut found, mut idle) = yard.search(leavers, budgets);
    let mut aside: Idle<'_> = Vec::new();
    for _ in 0..ROUNDS_MAX {
        if found.is_some() || !idle.iter().any(stays) {
            break;
        }
        let (stay, others): (Idle<'_>, Idle<'_>) = idle.into_iter().partition(stays);
        aside.extend(stay);
        let others = others.into_iter().map(|(own, _)| own).collect();
        (found, idle) = yard.search(others, budgets);
    }
    idle.extend(aside);
    for (own, verdict) in idle {
        kept.push(RetainedNode::new(
            own.candidate,
            Reason::Underutilized,
            verdict,
        ));
    }
    (found, kept)
}

type Idle<'s> = Vec<(RemovalCandidate<'s>, Verdict)>;

/// Where sets of nodes are thought away.
struct Search<'f, 'a> {
    field: &'f WhatIf<'a>,
    now: Timestamp,
    node_price: f64,
    balance: Balance<'f>,
    roster: &'f DisruptionView<'f>,
    /// Nodes that take no pods.
    closed: Vec<&'f NodeName>,
}

impl<'a> Search<'_, 'a> {
    fn search<'s>(
        &self,
        mut leavers: Vec<RemovalCandidate<'s>>,
        budgets: &mut Budgets<'_>,
    ) -> (Option<ConsolidationAction>, Idle<'s>) {
        let mut idle: Idle<'s> = Vec::new();
        if leavers.is_empty() {
            return (None, idle);
        }
        let (bought, saved) = self.afresh(&mut leavers, &mut idle);
        self.appraise(&mut leavers, &bought);
        leavers.sort_by(|one, other| {
            let ratio = |own: &RemovalCandidate<'_>| own.waste / own.candidate.cost;
            let falling = ratio(other).total_cmp(&ratio(one));
            falling.then_with(|| one.name.cmp(other.name))
        });
        let (count, trial) = self.least_that_saves(&leavers, saved);
        let rest = leavers.split_off(count);
        let (mut leave, mut later) = (Vec::new(), Vec::new());
        for own in leavers {
            match budgets.take(own.candidate, Reason::Underutilized) {
                Ok(()) => leave.push(own),
                Err(verdict) => later.push((own, verdict)),
            }
        }
        let (found, barred) = if leave.is_empty() {
            Default::default()
        } else {
            self.settle(&leave, &later, trial.filter(|_| later.is_empty()))
        };
        let stays = |at: &usize| !found.as_ref().is_some_and(|(own, _)| own.contains(at));
        for at in (0..leave.len()).rev().filter(stays) {
            budgets.give_back(leave[at].candidate);
            let (own, mut verdict) = self.stays(leave.remove(at));
            if barred.contains(&at) {
                let price = Price::new(own.price).unwrap_or_default();
                verdict = Verdict::Inflexible { price };
            }
            idle.push((own, verdict));
        }
        idle.extend(later);
        idle.extend(rest.into_iter().map(|own| self.stays(own)));
        (found.map(|(_, trial)| self.made(&leave, trial)), idle)
    }

    /// What all that may leave would be in a plan afresh, and what that saves if it is known. Nodes
    /// with pods without a place elsewhere are left out, whoever else leaves.
    fn afresh<'s>(
        &self,
        leavers: &mut Vec<RemovalCandidate<'s>>,
        idle: &mut Idle<'s>,
    ) -> (Vec<NodePurchase>, Option<f64>) {
        let mut bought = Vec::new();
        for _ in 0..=ROUNDS_MAX {
            let all: Vec<&RemovalCandidate<'_>> = leavers.iter().collect();
            let whole = self.think_away(&all, &[], |_| false);
            if whole.stuck.is_empty() {
                let saved = whole.worth();
                return (whole.bought, Some(saved));
            }
            drop_stuck(leavers, &whole.stuck, idle);
            bought = whole.bought;
        }
        (bought, None)
    }

    /// A node that is left out since nothing or too little is saved by its leaving.
    fn stays<'s>(&self, own: RemovalCandidate<'s>) -> (RemovalCandidate<'s>, Verdict) {
        let price = Price::new(own.price).unwrap_or_default();
        let verdict = match self.balance.weighs(own.candidate) {
            true => Verdict::Disruptive { price },
            false => Verdict::NotCheaper { price },
        };
        (own, verdict)
    }

    /// What becomes of the pods of these nodes, if they left; `closed` would take none. Where each
    /// goes is worked out if all have a place, and what that saves is what `is_wanted`.
    fn think_away(
        &self,
        leave: &[&RemovalCandidate<'_>],
        closed: &[&NodeName],
        is_wanted: impl Fn(f64) -> bool,
    ) -> RemovalOutcome {
        let nodes: HashSet<&NodeName> = leave.iter().map(|own| own.name).collect();
        let closed = closed.iter().chain(&self.closed).copied().collect();
        let snapshot = self.field.without(&nodes, &closed);
        let before = leave.iter().map(|own| own.price + self.node_price).sum();
        let cost = |own: &SolutionCost| -> f64 {
            let each = own.bought.iter().map(|own| own.price + self.node_price);
            each.sum()
        };
        let (weight, solution) = weigh(&snapshot, self.now, |own| {
            own.left.is_empty() && is_wanted(before - cost(own))
        });
        let after = match &solution {
            Some(solution) => solution.claims.iter().map(|own| self.price(own)).sum(),
            None => cost(&weight),
        };
        let late = solution.iter().flat_map(|own| &own.unplaced);
        let left: HashSet<&PodKey> = weight.left.iter().chain(late.map(|own| &own.pod)).collect();
        let pods = snapshot.pending.iter().filter(|_| !left.is_empty());
        let stuck = pods.filter(|pod| left.contains(&pod.key));
        let stuck = stuck.filter_map(|pod| {
            let node = pod.node.as_ref().filter(|own| nodes.contains(own))?;
            Some((node.clone(), pod.key.clone()))
        });
        let candidates = leave.iter().map(|own| own.candidate);
        RemovalOutcome {
            balanced: self.balance.approves(candidates, before - after),
            stuck: stuck.collect(),
            bought: weight.bought,
            solution,
            before,
            after,
        }
    }

    fn price(&self, claim: &NewNodeClaim) -> f64 {
        let first = claim.offerings.first();
        first.map_or(0.0, |(_, price)| price.usd_per_h()) + self.node_price
    }

    /// Works out what each node wastes: what a plan afresh pays for pods like its own is what they
    /// are worth, by what they take of their nodes there.
    fn appraise(&self, leavers: &mut [RemovalCandidate<'_>], afresh: &[NodePurchase]) {
        // Worth and number by what is asked for: pods alike are worth alike.
        let mut worth: BTreeMap<Size, (f64, f64)> = BTreeMap::new();
        for own in afresh {
            let all = |amount: fn(&Size) -> i64| {
                let each = own.pods.iter();
                let each = each.map(|(size, count)| as_float(amount(size)) * as_count(*count));
                each.sum::<f64>().max(1.0)
            };
            let (cpu, memory) = (all(|size| size.0), all(|size| size.1));
            let share = |size: &Size| (as_float(size.0) / cpu).max(as_float(size.1) / memory);
            let share = |size: &Size| share(size).max(1e-9);
            let shares = own.pods.iter();
            let shares = shares.map(|(size, count)| share(size) * as_count(*count));
            let each = (own.price + self.node_price) / shares.sum::<f64>();
            for (size, count) in &own.pods {
                let entry = worth.entry(*size).or_default();
                entry.0 += each * share(size) * as_count(*count);
                entry.1 += as_count(*count);
            }
        }
        for own in leavers {
            let tenancy = self.field.tenancies.get(own.name);
            let pods = tenancy.map_or(&[][..], |own| &own.pods);
            let needed = pods.iter().filter_map(|pod| {
                let asks = &pod.requests;
                let (sum, count) = worth.get(&(asks.cpu_milli.max(0), asks.memory.max(0)))?;
                Some(sum / count)
            });
            own.waste = own.price + self.node_price - needed.sum::<f64>();
        }
    }

    /// How many of the nodes, the most wasteful first, have to leave to save nearly all that can
    /// be saved, and the plan for that if it is known; none if nothing can. `whole` is what all of
    /// them save.
    fn least_that_saves(
        &self,
        leavers: &[RemovalCandidate<'_>],
        whole: Option<f64>,
    ) -> (usize, Option<RemovalOutcome>) {
        let mut fewest = RemovalSearch::new(leavers.iter().map(|own| own.price + self.node_price));
        if let Some(saved) = whole {
            fewest.learn(leavers.len(), saved);
        }
        let pods = |count: usize| {
            let pods: usize = leavers[..count].iter().map(|own| own.pods).sum();
            as_count(pods as u64)
        };
        let all = pods(leavers.len());
        let mut effort = 0.0;
        let mut known: Option<(usize, RemovalOutcome)> = None;
        let wasted = |own: &RemovalCandidate<'_>| own.waste.max(0.0);
        let is_wasteful = |own: &&RemovalCandidate<'_>| own.waste > own.price * SAVED_MIN;
        // If all room that is wasted is filled, what it costs is saved. What is not worth it for
        // all may still be worth it for those.
        let is_weighed = |own: &RemovalCandidate<'_>| self.balance.weighs(own.candidate);
        let first = match fewest.least() {
            None if !leavers.iter().any(is_weighed) => leavers.iter().filter(is_wasteful).count(),
            _ => fewest.at_least(leavers.iter().map(wasted).sum()),
        };
        let mut next = Some(first).filter(|count| (1..leavers.len()).contains(count));
        next = next.or_else(|| fewest.next());
        while let Some(count) = next.filter(|_| effort < EFFORT_MAX * all) {
            effort += pods(count).max(EFFORT_MIN * all);
            let set: Vec<&RemovalCandidate<'_>> = leavers[..count].iter().collect();
            let trial = self.think_away(&set, &[], |saved| {
                let mut fewest = fewest.clone();
                fewest.learn(count, saved);
                fewest.least() == Some(count)
            });
            fewest.learn(count, trial.worth());
            if trial.solution.is_some() {
                known = Some((count, trial));
            }
            next = fewest.next();
        }
        let count = fewest.least().unwrap_or(0);
        let trial = known.filter(|own| own.0 == count);
        (count, trial.map(|own| own.1))
    }

    /// Which of these nodes leave, and the plan for their pods: all but those that leave for
    /// nothing. Those that are to leave later take no pods, so that none moves twice, unless
    /// nothing is saved then. What is known is the plan for all of them. Beside that, in whose
    /// place nothing may be launched.
    fn settle(
        &self,
        leave: &[RemovalCandidate<'_>],
        later: &[(RemovalCandidate<'_>, Verdict)],
        mut known: Option<RemovalOutcome>,
    ) -> (Option<(HashSet<usize>, RemovalOutcome)>, HashSet<usize>) {
        let mut barred = HashSet::default();
        let later: Vec<&NodeName> = later.iter().map(|(own, _)| own.name).collect();
        let again = (!later.is_empty()).then_some(&[][..]);
        for closed in [Some(&later[..]), again].into_iter().flatten() {
            let mut found: Option<(HashSet<usize>, RemovalOutcome)> = None;
            let mut places: Vec<usize> = (0..leave.len()).collect();
            for _ in 0..ROUNDS_MAX {
                let set: Vec<&RemovalCandidate<'_>> = places.iter().map(|at| &leave[*at]).collect();
                if set.is_empty() {
                    break;
                }
                let again = || self.think_away(&set, closed, |_| true);
                let mut trial = known.take().unwrap_or_else(again);
                if let Some(solution) = &mut trial.solution {
                    let nodes = set.iter().map(|own| own.name).collect();
                    stay_in_zones(solution, &self.field.pending_without(&nodes), self.field);
                }
                let Some(solution) = trial.solution.as_ref().filter(|_| trial.stuck.is_empty())
                else {
                    places.retain(|at| !trial.stuck.contains_key(leave[*at].name));
                    continue;
                };
                let without = |out: &HashSet<usize>| -> Vec<usize> {
                    let left = places.iter().enumerate();
                    let left = left.filter(|(place, _)| !out.contains(place));
                    left.map(|(_, at)| *at).collect()
                };
                let swaps =
                    ReplacementGroups::new(self.field, set.iter().map(|own| own.name), solution);
                let inflexible = self.inflexible(&set, &swaps, &trial);
                if !inflexible.is_empty() {
                    let out = places.iter().enumerate();
                    let out = out.filter(|(place, _)| inflexible.contains(place));
                    barred.extend(out.map(|(_, at)| *at));
                    places = without(&inflexible);
                    continue;
                }
                let mut vain = self.in_vain(&set, &swaps);
                if found.is_none() && set.len() <= ALIKE_MAX {
                    let nodes: Vec<LeavingNode<'_>> = set
                        .iter()
                        .map(|own| LeavingNode::of(own.candidate, own.price))
                        .collect();
                    // What is saved by a swap for the like has to be worth it, too.
                    let least = 1.0 + SAVED_MIN;
                    vain.extend(
                        swaps.needless(&nodes, |own| (self.price(own) - self.node_price) * least),
                    );
                }
                let kept = without(&vain);
                let most = found.as_ref().map_or(0.0, |(_, own)| own.saved());
                if trial.is_worth_it() && is_enough(trial.saved(), most) {
                    found = Some((places.into_iter().collect(), trial));
                }
                if vain.is_empty() {
                    break;
                }
                places = kept;
            }
            if found.is_some() {
                return (found, barred);
            }
        }
        (None, barred)
    }

    /// Of nodes whose pods go to the same new nodes, directly or through others: those that save
    /// too little together.
    fn in_vain(
        &self,
        leave: &[&RemovalCandidate<'_>],
        swaps: &ReplacementGroups<'_>,
    ) -> HashSet<usize> {
        let mut sums: HashMap<usize, (f64, f64)> = HashMap::default();
        for (own, part) in leave.iter().zip(&swaps.parts) {
            sums.entry(*part).or_default().0 += own.price + self.node_price;
        }
        for (part, claim) in &swaps.claims {
            let sum = part.and_then(|part| sums.get_mut(&part));
            sum.into_iter().for_each(|own| own.1 += self.price(claim));
        }
        let saves_little = |at: &usize| {
            let (before, after) = sums.get(&swaps.parts[*at]).copied().unwrap_or_default();
            before - after <= before * SAVED_MIN
        };
        (0..leave.len()).filter(saves_little).collect()
    }

    /// The same of those in whose place too few types could be launched.
    fn inflexible(
        &self,
        leave: &[&RemovalCandidate<'_>],
        swaps: &ReplacementGroups<'_>,
        trial: &RemovalOutcome,
    ) -> HashSet<usize> {
        let claims = swaps.claims.iter();
        let barred = claims.filter(|own| self.offers(leave, swaps, own, trial).is_none());
        let barred: HashSet<usize> = barred.filter_map(|own| own.0).collect();
        let all = 0..leave.len();
        all.filter(|at| barred.contains(&swaps.parts[*at]))
            .collect()
    }

    /// What may be launched for a claim so that the whole costs less than what leaves, whatever of
    /// it is; none where that is too little.
    fn offers(
        &self,
        leave: &[&RemovalCandidate<'_>],
        swaps: &ReplacementGroups<'_>,
        (part, claim): &(Option<usize>, &NewNodeClaim),
        trial: &RemovalOutcome,
    ) -> Option<Vec<(OfferingKey, Price)>> {
        let pool = self.roster.cluster.pool(claim.pool.as_str())?;
        let catalog = self.roster.catalogs.get(&claim.pool)?;
        let sole = part.and_then(|part| swaps.sole(part));
        let spot = sole.is_some_and(|at| {
            let labels = &leave[at].candidate.node.labels;
            labels.get(CAPACITY_TYPE).map(String::as_str) == Some(CapacityType::Spot.as_str())
        });
        offers(claim, self.most(claim, trial), spot, (pool, catalog))
    }

    /// What a claim may cost at most.
    fn most(&self, claim: &NewNodeClaim, trial: &RemovalOutcome) -> f64 {
        let most = trial.before * (1.0 - CHEAPER_MIN);
        // Where all that comes is free, nothing says what each may cost.
        let share = match trial.after > 0.0 {
            true => self.price(claim) / trial.after,
            false => 1.0,
        };
        most * share - self.node_price
    }

    fn made(
        &self,
        leave: &[RemovalCandidate<'_>],
        mut trial: RemovalOutcome,
    ) -> ConsolidationAction {
        let mut solution = trial.solution.take().unwrap_or_default();
        let all: Vec<&RemovalCandidate<'_>> = leave.iter().collect();
        let swaps = ReplacementGroups::new(self.field, all.iter().map(|own| own.name), &solution);
        let cut = swaps.claims.iter().map(|own| {
            let left = self.offers(&all, &swaps, own, &trial);
            left.unwrap_or_else(|| affordable(own.1, self.most(own.1, &trial)))
        });
        let cut: Vec<Vec<(OfferingKey, Price)>> = cut.collect();
        for (claim, offerings) in solution.claims.iter_mut().zip(cut) {
            claim.offerings = offerings;
        }
        ConsolidationAction {
            nodes: all.iter().map(|own| own.name.clone()).collect(),
            claims: solution.claims,
            placed: solution.placed,
            saves: trial.saved(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "amounts are far below 2^53")]
fn as_float(amount: i64) -> f64 {
    amount as f64
}

#[expect(clippy::cast_precision_loss, reason = "there are far fewer pods")]
fn as_count(count: u64) -> f64 {
    count as f64
}

fn drop_stuck<'s>(
    leavers: &mut Vec<RemovalCandidate<'s>>,
    stuck: &BTreeMap<NodeName, PodKey>,
    idle: &mut Idle<'s>,
) {
    for at in (0..leavers.len()).rev() {
        if let Some(pod) = stuck.get(leavers[at].name) {
            idle.push((leavers.remove(at), Verdict::NoPlace { pod: pod.clone() }));
        }
    }
}
