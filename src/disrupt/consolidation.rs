//! Which nodes cost more than their pods need: all of them are weighed as one problem, and those
//! leave together whose pods fit elsewhere, or on something cheaper, for the least disruption.
//! It must not know how a plan is carried out, nor the other reasons for leaving.
//!
//! What all the pods would cost if they were planned afresh says what each node wastes. The
//! most wasteful leave first, as many as it takes to save nearly all that can be saved; whoever
//! leaves for nothing stays. Why so, and not one node after another:
//! docs/decisions/027-consolidation.md.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;

use crate::disrupt::balance::Balance;
use crate::disrupt::budgets::Budgets;
use crate::disrupt::fewest::{Fewest, is_enough};
use crate::disrupt::gate::{kept_anyway, not_calm};
use crate::disrupt::verdict::{Kept, Verdict};
use crate::model::id::{NodeName, PodKey};
use crate::model::instance::Price;
use crate::model::pool::{Consolidation, Disruption, Reason};
use crate::solve::weight::{Bought, Size, Weight};
use crate::solve::{NewClaim, Solution, weigh};
use crate::state::field::Field;
use crate::state::roster::{Candidate, Roster};
use crate::state::snapshot::Host;

/// Nodes that leave together, and what comes in their place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Move {
    /// The nodes.
    pub nodes: Vec<NodeName>,
    /// Nodes to be made for their pods, each cheaper than what leaves, whatever it is launched as.
    pub claims: Vec<NewClaim>,
    /// Pods that nodes take which are there.
    pub placed: Vec<(Host, Vec<PodKey>)>,
}

/// Of what nodes cost that leave together, so much must be saved at least: less is not worth the
/// pods' moving. Twice as much for each time that a move has not saved what it was to.
const SAVED_MIN: f64 = 0.03;
const SAVED_DOUBLED_MAX: u32 = 4;

/// For each such time so much of what the whole cluster costs must be saved too: pods that nobody
/// leads to their places fill nodes less well than a plan does.
const SAVED_OF_ALL: f64 = 0.01;

/// Sets of nodes are tried until so many times as many pods were planned as may move; a small set
/// counts for this share of all.
const EFFORT_MAX: f64 = 1.0;
const EFFORT_MIN: f64 = 0.125;

/// Rounds in which nodes are left out whose leaving saves nothing, or whose pods find no place.
const ROUNDS_MAX: usize = 4;

/// A node that may leave, and what is known of it.
struct Leaver<'a> {
    candidate: &'a Candidate<'a>,
    name: &'a NodeName,
    price: f64,
    /// How many pods it would leave behind.
    pods: usize,
    /// What it costs beyond what its pods would cost in a plan afresh.
    waste: f64,
}

/// A set of nodes thought away.
struct Trial {
    bought: Vec<Bought>,
    /// Where it goes, if that was asked for.
    solution: Option<Solution>,
    before: f64,
    after: f64,
    /// Nodes with a pod for which there is no place then.
    stuck: BTreeMap<NodeName, PodKey>,
    /// Whether it is worth what it disrupts.
    balanced: bool,
    /// Of what leaves, so much has to be saved, and at least this.
    share: f64,
    least: f64,
}

impl Trial {
    fn saved(&self) -> f64 {
        self.before - self.after
    }

    fn is_worth_it(&self) -> bool {
        let saves = self.saved() > (self.before * self.share).max(self.least);
        saves && self.stuck.is_empty() && self.balanced
    }

    /// What it saves, and nothing where that is not worth it.
    fn worth(&self) -> f64 {
        if self.is_worth_it() {
            self.saved()
        } else {
            0.0
        }
    }
}

/// The nodes that may leave now since their pods can be had for less, and why the others stay.
pub fn consolidate<'a>(
    roster: &'a Roster<'a>,
    field: &Field<'a>,
    budgets: &mut Budgets<'_>,
    now: Timestamp,
) -> (Option<Move>, Vec<Kept>) {
    let mut kept = Vec::new();
    let mut leavers: Vec<Leaver<'_>> = Vec::new();
    let candidates = roster.candidates.iter();
    for candidate in candidates.filter(|own| !budgets.has_let_go(own)) {
        match leaver(candidate, roster, field, now) {
            Ok(own) => leavers.push(own),
            Err(verdict) => kept.push(Kept::new(candidate, Reason::Underutilized, verdict)),
        }
    }
    let vain = roster.recent.vain.min(SAVED_DOUBLED_MAX);
    let prices = leavers.iter().map(|own| own.price);
    let whole: f64 = prices.sum();
    let yard = Yard {
        field,
        now,
        node_price: roster.cluster.scheduling.node_price.usd_per_h(),
        balance: Balance::new(roster),
        share: SAVED_MIN * f64::from(2_u32.pow(vain)),
        least: SAVED_OF_ALL * f64::from(vain) * whole,
    };
    let weighs = |own: &Leaver<'_>| yard.balance.weighs(own.candidate);
    let (mut found, mut idle) = yard.search(leavers, budgets);
    // Where a pool finds the whole not worth it, others may without it.
    if found.is_none() && idle.iter().any(|(own, _)| weighs(own)) {
        let (stay, others): (Idle<'_>, Idle<'_>) = idle.into_iter().partition(|own| weighs(&own.0));
        let others = others.into_iter().map(|(own, _)| own).collect();
        (found, idle) = yard.search(others, budgets);
        idle.extend(stay);
    }
    kept.extend(
        idle.into_iter()
            .map(|(own, verdict)| Kept::new(own.candidate, Reason::Underutilized, verdict)),
    );
    (found, kept)
}

/// What speaks against a node's leaving before anything is worked out.
fn leaver<'a>(
    candidate: &'a Candidate<'a>,
    roster: &Roster<'_>,
    field: &Field<'a>,
    now: Timestamp,
) -> Result<Leaver<'a>, Verdict> {
    let pool = roster.cluster.pool(candidate.pool.as_str());
    let pool = pool.ok_or(Verdict::NoPool)?;
    if pool.replicas.is_some() {
        return Err(Verdict::Static);
    }
    if pool.disruption.consolidation == Consolidation::Empty {
        return Err(Verdict::EmptyOnly);
    }
    if candidate.pods == 0 {
        return Err(Verdict::Unused);
    }
    if let Some(buffer) = roster.held.get(&candidate.node.name) {
        return Err(Verdict::Buffer(buffer.clone()));
    }
    if let Some(verdict) = kept_anyway(candidate, Some(pool), Reason::Underutilized, now) {
        return Err(verdict);
    }
    if let Some(verdict) = not_calm(candidate, pool, now) {
        return Err(verdict);
    }
    if let Some(verdict) = is_needed(candidate, &pool.disruption, now) {
        return Err(verdict);
    }
    let name = &candidate.node.name;
    let tenancy = field.tenancies.get(name).ok_or(Verdict::NotInitialized)?;
    if let Some(pod) = &tenancy.stray {
        return Err(Verdict::Stray { pod: pod.clone() });
    }
    let price = tenancy.price.ok_or(Verdict::Unpriced)?.usd_per_h();
    Ok(Leaver {
        candidate,
        name,
        price,
        pods: tenancy.pods.len(),
        waste: price,
    })
}

/// What keeps a node that is used too much, or has not been used less for long enough: it may have
/// been when a pod last came or went. Source: Cluster Autoscaler,
/// `scale-down-utilization-threshold` and `scale-down-unneeded-time`.
fn is_needed(candidate: &Candidate<'_>, pool: &Disruption, now: Timestamp) -> Option<Verdict> {
    if let (Some(used), Some(least)) = (candidate.utilization, pool.utilization_threshold)
        && used >= least
    {
        return Some(Verdict::Utilized { used, least });
    }
    let until = candidate.changed?.checked_add(pool.unneeded_for);
    let until = until.unwrap_or(Timestamp::MAX);
    (until > now).then_some(Verdict::TooEarly { until })
}

type Idle<'s> = Vec<(Leaver<'s>, Verdict)>;

/// Where sets of nodes are thought away.
struct Yard<'f, 'a> {
    field: &'f Field<'a>,
    now: Timestamp,
    node_price: f64,
    balance: Balance<'f>,
    /// Of what leaves, so much has to be saved, and at least this.
    share: f64,
    least: f64,
}

impl<'a> Yard<'_, 'a> {
    fn search<'s>(
        &self,
        mut leavers: Vec<Leaver<'s>>,
        budgets: &mut Budgets<'_>,
    ) -> (Option<Move>, Idle<'s>) {
        let mut idle: Idle<'s> = Vec::new();
        if leavers.is_empty() {
            return (None, idle);
        }
        let (bought, saved) = self.afresh(&mut leavers, &mut idle);
        self.appraise(&mut leavers, &bought);
        leavers.sort_by(|one, other| {
            let ratio = |own: &Leaver<'_>| own.waste / own.candidate.cost;
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
        let found = if leave.is_empty() {
            None
        } else {
            self.settle(&leave, &later, trial.filter(|_| later.is_empty()))
        };
        let stays = |at: &usize| !found.as_ref().is_some_and(|(own, _)| own.contains(at));
        for at in (0..leave.len()).rev().filter(stays) {
            budgets.give_back(leave[at].candidate);
            idle.push(self.stays(leave.remove(at)));
        }
        idle.extend(later);
        idle.extend(rest.into_iter().map(|own| self.stays(own)));
        (found.map(|(_, trial)| self.made(&leave, trial)), idle)
    }

    /// What all that may leave would be in a plan afresh, and what that saves if it is known. Nodes
    /// with pods without a place elsewhere are left out, whoever else leaves.
    fn afresh<'s>(
        &self,
        leavers: &mut Vec<Leaver<'s>>,
        idle: &mut Idle<'s>,
    ) -> (Vec<Bought>, Option<f64>) {
        let mut bought = Vec::new();
        for _ in 0..=ROUNDS_MAX {
            let all: Vec<&Leaver<'_>> = leavers.iter().collect();
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
    fn stays<'s>(&self, own: Leaver<'s>) -> (Leaver<'s>, Verdict) {
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
        leave: &[&Leaver<'_>],
        closed: &[&NodeName],
        is_wanted: impl Fn(f64) -> bool,
    ) -> Trial {
        let nodes: HashSet<&NodeName> = leave.iter().map(|own| own.name).collect();
        let closed: HashSet<&NodeName> = closed.iter().copied().collect();
        let snapshot = self.field.without(&nodes, &closed);
        let before = leave.iter().map(|own| own.price + self.node_price).sum();
        let cost = |own: &Weight| -> f64 {
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
        Trial {
            balanced: self.balance.approves(candidates, before - after),
            stuck: stuck.collect(),
            bought: weight.bought,
            solution,
            before,
            after,
            share: self.share,
            least: self.least,
        }
    }

    fn price(&self, claim: &NewClaim) -> f64 {
        let first = claim.offerings.first();
        first.map_or(0.0, |(_, price)| price.usd_per_h()) + self.node_price
    }

    /// Works out what each node wastes: what a plan afresh pays for pods like its own is what they
    /// are worth, by what they take of their nodes there.
    fn appraise(&self, leavers: &mut [Leaver<'_>], afresh: &[Bought]) {
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
        leavers: &[Leaver<'_>],
        whole: Option<f64>,
    ) -> (usize, Option<Trial>) {
        let mut fewest = Fewest::new(leavers.iter().map(|own| own.price + self.node_price));
        if let Some(saved) = whole {
            fewest.learn(leavers.len(), saved);
        }
        let pods = |count: usize| {
            let pods: usize = leavers[..count].iter().map(|own| own.pods).sum();
            as_count(pods as u64)
        };
        let all = pods(leavers.len());
        let mut effort = 0.0;
        let mut known: Option<(usize, Trial)> = None;
        let wasted = |own: &Leaver<'_>| own.waste.max(0.0);
        let is_wasteful = |own: &&Leaver<'_>| own.waste > own.price * self.share;
        // If all room that is wasted is filled, what it costs is saved. What is not worth it for
        // all may still be worth it for those.
        let is_weighed = |own: &Leaver<'_>| self.balance.weighs(own.candidate);
        let first = match fewest.least() {
            None if !leavers.iter().any(is_weighed) => leavers.iter().filter(is_wasteful).count(),
            _ => fewest.at_least(leavers.iter().map(wasted).sum()),
        };
        let mut next = Some(first).filter(|count| (1..leavers.len()).contains(count));
        next = next.or_else(|| fewest.next());
        while let Some(count) = next.filter(|_| effort < EFFORT_MAX * all) {
            effort += pods(count).max(EFFORT_MIN * all);
            let set: Vec<&Leaver<'_>> = leavers[..count].iter().collect();
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
    /// nothing is saved then. What is known is the plan for all of them.
    fn settle(
        &self,
        leave: &[Leaver<'_>],
        later: &[(Leaver<'_>, Verdict)],
        mut known: Option<Trial>,
    ) -> Option<(HashSet<usize>, Trial)> {
        let later: Vec<&NodeName> = later.iter().map(|(own, _)| own.name).collect();
        let again = (!later.is_empty()).then_some(&[][..]);
        for closed in [Some(&later[..]), again].into_iter().flatten() {
            let mut found: Option<(HashSet<usize>, Trial)> = None;
            let mut places: Vec<usize> = (0..leave.len()).collect();
            for _ in 0..ROUNDS_MAX {
                let set: Vec<&Leaver<'_>> = places.iter().map(|at| &leave[*at]).collect();
                if set.is_empty() {
                    break;
                }
                let again = || self.think_away(&set, closed, |_| true);
                let trial = known.take().unwrap_or_else(again);
                let Some(solution) = trial.solution.as_ref().filter(|_| trial.stuck.is_empty())
                else {
                    places.retain(|at| !trial.stuck.contains_key(leave[*at].name));
                    continue;
                };
                let vain = self.in_vain(&set, solution);
                let mut place = 0..;
                let kept: Vec<usize> = places
                    .iter()
                    .copied()
                    .filter(|_| place.next().is_some_and(|own| !vain.contains(&own)))
                    .collect();
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
                return found;
            }
        }
        None
    }

    /// Of nodes whose pods go to the same new nodes, directly or through others: those that save
    /// too little together.
    fn in_vain(&self, leave: &[&Leaver<'_>], solution: &Solution) -> HashSet<usize> {
        let tenancies = &self.field.tenancies;
        let mut homes: HashMap<&PodKey, usize> = HashMap::new();
        for (at, own) in leave.iter().enumerate() {
            let pods = tenancies.get(own.name).map_or(&[][..], |own| &own.pods);
            homes.extend(pods.iter().map(|pod| (&pod.key, at)));
        }
        let mut groups = Groups::new(leave.len());
        let mut paid: Vec<(usize, f64)> = Vec::new();
        for claim in &solution.claims {
            let mut from = claim.pods.iter().filter_map(|pod| homes.get(pod));
            let Some(first) = from.next() else { continue };
            from.for_each(|other| groups.join(*first, *other));
            paid.push((*first, self.price(claim)));
        }
        let mut sums: HashMap<usize, (f64, f64)> = HashMap::new();
        for (at, own) in leave.iter().enumerate() {
            sums.entry(groups.root(at)).or_default().0 += own.price + self.node_price;
        }
        for (at, price) in paid {
            sums.entry(groups.root(at)).or_default().1 += price;
        }
        let saves_little = |at: &usize| {
            let (before, after) = sums.get(&groups.root(*at)).copied().unwrap_or_default();
            before - after <= before * self.share
        };
        (0..leave.len()).filter(saves_little).collect()
    }

    fn made(&self, leave: &[Leaver<'_>], trial: Trial) -> Move {
        let Solution {
            mut claims, placed, ..
        } = trial.solution.unwrap_or_default();
        // Whatever is launched of what a claim may be, the whole costs less than what leaves.
        let room = trial.before * (1.0 - self.share) / trial.after;
        for claim in &mut claims {
            let most = self.price(claim) * room - self.node_price;
            claim
                .offerings
                .retain(|(_, price)| price.usd_per_h() <= most);
        }
        Move {
            nodes: leave.iter().map(|own| own.name.clone()).collect(),
            claims,
            placed,
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
    leavers: &mut Vec<Leaver<'s>>,
    stuck: &BTreeMap<NodeName, PodKey>,
    idle: &mut Idle<'s>,
) {
    for at in (0..leavers.len()).rev() {
        if let Some(pod) = stuck.get(leavers[at].name) {
            idle.push((leavers.remove(at), Verdict::NoPlace { pod: pod.clone() }));
        }
    }
}

/// Sets of numbers that are joined.
struct Groups(Vec<usize>);

impl Groups {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    fn root(&mut self, mut at: usize) -> usize {
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        self.0[one.max(other)] = one.min(other);
    }
}
