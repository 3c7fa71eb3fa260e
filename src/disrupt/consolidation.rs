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

use crate::disrupt::budgets::Budgets;
use crate::disrupt::gate::{kept_anyway, not_calm};
use crate::disrupt::verdict::{Kept, Verdict};
use crate::model::id::{NodeName, PodKey};
use crate::model::instance::Price;
use crate::model::pool::{Consolidation, Reason};
use crate::model::quantity::Resources;
use crate::solve::{NewClaim, Solution, solve};
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

/// Of what nodes cost that leave together, so much must be saved at least, in thousandths: less is
/// not worth the pods' moving.
const SAVED_MIN_PER_MILLE: f64 = 30.0;

/// The fewest nodes are taken that save this share of the most that was found.
const ENOUGH: f64 = 0.97;

/// So many sets of nodes are tried at most. Each is a plan for all pods of the set.
const TRIALS_MAX: usize = 10;

/// Rounds in which nodes are left out whose leaving saves nothing, or whose pods find no place.
const ROUNDS_MAX: usize = 4;

/// A node that may leave, and what is known of it.
struct Stake<'a> {
    candidate: &'a Candidate<'a>,
    name: &'a NodeName,
    price: f64,
    /// What its leaving disrupts: one for itself, and its pods.
    cost: f64,
    /// What it costs beyond what its pods would cost in a plan afresh.
    waste: f64,
}

/// A set of nodes thought away.
struct Trial {
    solution: Solution,
    before: f64,
    after: f64,
    /// Nodes with a pod for which there is no place then.
    stuck: BTreeMap<NodeName, PodKey>,
}

impl Trial {
    fn saved(&self) -> f64 {
        self.before - self.after
    }

    fn is_worth_it(&self) -> bool {
        self.stuck.is_empty() && self.saved() > self.before * SAVED_MIN_PER_MILLE / 1000.0
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
    let mut stakes: Vec<Stake<'_>> = Vec::new();
    let candidates = roster.candidates.iter();
    for candidate in candidates.filter(|own| !budgets.has_let_go(own)) {
        match stake(candidate, roster, field, now) {
            Ok(own) => stakes.push(own),
            Err(verdict) => kept.push(Kept::new(candidate, Reason::Underutilized, verdict)),
        }
    }
    let yard = Yard {
        field,
        now,
        node_price: roster.cluster.scheduling.node_price.usd_per_h(),
    };
    let (found, idle) = yard.search(stakes, budgets);
    kept.extend(
        idle.into_iter()
            .map(|(own, verdict)| Kept::new(own.candidate, Reason::Underutilized, verdict)),
    );
    (found, kept)
}

/// What speaks against a node's leaving before anything is worked out.
fn stake<'a>(
    candidate: &'a Candidate<'a>,
    roster: &Roster<'_>,
    field: &Field<'a>,
    now: Timestamp,
) -> Result<Stake<'a>, Verdict> {
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
    let name = &candidate.node.name;
    let tenancy = field.tenancies.get(name).ok_or(Verdict::NotInitialized)?;
    if let Some(pod) = &tenancy.stray {
        return Err(Verdict::Stray { pod: pod.clone() });
    }
    let price = tenancy.price.ok_or(Verdict::Unpriced)?.usd_per_h();
    Ok(Stake {
        candidate,
        name,
        price,
        #[expect(clippy::cast_precision_loss, reason = "a node has far fewer pods")]
        cost: 1.0 + tenancy.pods.len() as f64,
        waste: price,
    })
}

type Idle<'s> = Vec<(Stake<'s>, Verdict)>;

/// Where sets of nodes are thought away.
struct Yard<'f, 'a> {
    field: &'f Field<'a>,
    now: Timestamp,
    node_price: f64,
}

impl<'a> Yard<'_, 'a> {
    fn search<'s>(
        &self,
        mut stakes: Vec<Stake<'s>>,
        budgets: &mut Budgets<'_>,
    ) -> (Option<Move>, Idle<'s>) {
        let mut idle: Idle<'s> = Vec::new();
        if stakes.is_empty() {
            return (None, idle);
        }
        // Pods without a place elsewhere keep their nodes, whoever else leaves.
        let all = |stakes: &[Stake<'s>]| self.think_away(&stakes.iter().collect::<Vec<_>>(), &[]);
        let mut whole = all(&stakes);
        for _ in 0..ROUNDS_MAX {
            if whole.stuck.is_empty() {
                break;
            }
            drop_stuck(&mut stakes, &whole.stuck, &mut idle);
            whole = all(&stakes);
        }
        drop_stuck(&mut stakes, &whole.stuck, &mut idle);
        self.appraise(&mut stakes, &whole.solution);
        stakes.sort_by(|one, other| {
            let ratio = |own: &Stake<'_>| own.waste / own.cost;
            let falling = ratio(other).total_cmp(&ratio(one));
            falling.then_with(|| one.name.cmp(other.name))
        });
        let count = self.least_that_saves(&stakes, &whole);
        let rest = stakes.split_off(count);
        let (mut leave, mut later) = (Vec::new(), Vec::new());
        for own in stakes {
            match budgets.take(own.candidate, Reason::Underutilized) {
                Ok(()) => leave.push(own),
                Err(verdict) => later.push((own, verdict)),
            }
        }
        let found = if leave.is_empty() {
            None
        } else {
            self.settle(&leave, &later)
        };
        let stays = |at: &usize| !found.as_ref().is_some_and(|(own, _)| own.contains(at));
        for at in (0..leave.len()).rev().filter(stays) {
            budgets.give_back(leave[at].candidate);
            idle.push(cheap(leave.remove(at)));
        }
        idle.extend(later);
        idle.extend(rest.into_iter().map(cheap));
        (found.map(|(_, trial)| self.made(&leave, trial)), idle)
    }

    /// The plan for the pods of these nodes, if they left; `closed` would take none.
    fn think_away(&self, leave: &[&Stake<'_>], closed: &[&NodeName]) -> Trial {
        let nodes: HashSet<&NodeName> = leave.iter().map(|own| own.name).collect();
        let closed: HashSet<&NodeName> = closed.iter().copied().collect();
        let snapshot = self.field.without(&nodes, &closed);
        let mut homes: HashMap<&PodKey, &NodeName> = HashMap::new();
        for pod in &snapshot.pending {
            if let Some(node) = pod.node.as_ref().filter(|own| nodes.contains(own)) {
                homes.insert(&pod.key, node);
            }
        }
        let solution = solve(&snapshot, self.now);
        let unplaced = solution.unplaced.iter();
        let stuck = unplaced.filter_map(|own| {
            let home = homes.get(&own.pod)?;
            Some(((*home).clone(), own.pod.clone()))
        });
        Trial {
            before: leave.iter().map(|own| own.price + self.node_price).sum(),
            after: solution.claims.iter().map(|own| self.price(own)).sum(),
            stuck: stuck.collect(),
            solution,
        }
    }

    fn price(&self, claim: &NewClaim) -> f64 {
        let first = claim.offerings.first();
        first.map_or(0.0, |(_, price)| price.usd_per_h()) + self.node_price
    }

    /// Works out what each node wastes: what a plan afresh pays for pods like its own is what they
    /// are worth, by what they take of their nodes there.
    fn appraise(&self, stakes: &mut [Stake<'_>], afresh: &Solution) {
        let tenancies = &self.field.tenancies;
        let tenants = stakes.iter().filter_map(|own| tenancies.get(own.name));
        let pods = tenants.flat_map(|own| &own.pods);
        let asks: HashMap<&PodKey, &Resources> =
            pods.map(|pod| (&pod.key, &pod.requests)).collect();
        // Worth and number by what is asked for: pods alike are worth alike.
        let mut worth: HashMap<(i64, i64), (f64, f64)> = HashMap::new();
        for claim in &afresh.claims {
            let of = |key: &PodKey| asks.get(key).map(|own| share(own, &claim.requests));
            let whole: f64 = claim.pods.iter().filter_map(of).sum();
            for pod in &claim.pods {
                let Some(own) = asks.get(pod) else { continue };
                let part = self.price(claim) * share(own, &claim.requests) / whole;
                let entry = worth.entry((own.cpu_milli, own.memory)).or_default();
                entry.0 += part;
                entry.1 += 1.0;
            }
        }
        for own in stakes {
            let pods = tenancies.get(own.name).map_or(&[][..], |own| &own.pods);
            let needed = pods.iter().filter_map(|pod| {
                let (sum, count) = worth.get(&(pod.requests.cpu_milli, pod.requests.memory))?;
                Some(sum / count)
            });
            own.waste = own.price + self.node_price - needed.sum::<f64>();
        }
    }

    /// How many of the nodes, the most wasteful first, have to leave to save nearly all that can
    /// be saved; none if nothing can.
    fn least_that_saves(&self, stakes: &[Stake<'_>], whole: &Trial) -> usize {
        let worth = |trial: &Trial| {
            if trial.is_worth_it() {
                trial.saved()
            } else {
                0.0
            }
        };
        let mut tried = BTreeMap::from([(0, 0.0), (stakes.len(), worth(whole))]);
        let is_wasteful = |own: &&Stake<'_>| own.waste > own.price * SAVED_MIN_PER_MILLE / 1000.0;
        let mut next = stakes.iter().filter(is_wasteful).count();
        for _ in 0..TRIALS_MAX {
            tried.entry(next).or_insert_with(|| {
                let first: Vec<&Stake<'_>> = stakes[..next].iter().collect();
                worth(&self.think_away(&first, &[]))
            });
            let most = tried.values().copied().fold(0.0, f64::max);
            let enough = |saved: f64| saved > 0.0 && saved >= ENOUGH * most;
            // Between the fewest that save enough and the most below that do not; where nothing
            // has saved anything yet, far fewer.
            let least = tried.iter().find(|(_, saved)| enough(**saved));
            next = match least.map(|(count, _)| *count) {
                Some(high) => {
                    let low = tried
                        .range(..high)
                        .next_back()
                        .map_or(0, |(count, _)| *count);
                    usize::midpoint(low, high)
                }
                None => next / 4,
            };
            if tried.contains_key(&next) {
                break;
            }
        }
        let most = tried.values().copied().fold(0.0, f64::max);
        let mut found = tried.into_iter();
        let found = found.find(|(_, saved)| *saved > 0.0 && *saved >= ENOUGH * most);
        found.map_or(0, |(count, _)| count)
    }

    /// Which of these nodes leave, and the plan for their pods: all but those that leave for
    /// nothing. Those that are to leave later take no pods, so that none moves twice, unless
    /// nothing is saved then.
    fn settle(
        &self,
        leave: &[Stake<'_>],
        later: &[(Stake<'_>, Verdict)],
    ) -> Option<(HashSet<usize>, Trial)> {
        let later: Vec<&NodeName> = later.iter().map(|(own, _)| own.name).collect();
        let again = (!later.is_empty()).then_some(&[][..]);
        for closed in [Some(&later[..]), again].into_iter().flatten() {
            let mut found: Option<(HashSet<usize>, Trial)> = None;
            let mut places: Vec<usize> = (0..leave.len()).collect();
            for _ in 0..ROUNDS_MAX {
                let set: Vec<&Stake<'_>> = places.iter().map(|at| &leave[*at]).collect();
                if set.is_empty() {
                    break;
                }
                let trial = self.think_away(&set, closed);
                if !trial.stuck.is_empty() {
                    places.retain(|at| !trial.stuck.contains_key(leave[*at].name));
                    continue;
                }
                let vain = self.in_vain(&set, &trial.solution);
                let mut place = 0..;
                let kept: Vec<usize> = places
                    .iter()
                    .copied()
                    .filter(|_| place.next().is_some_and(|own| !vain.contains(&own)))
                    .collect();
                let most = found.as_ref().map_or(0.0, |(_, own)| own.saved());
                if trial.is_worth_it() && trial.saved() >= ENOUGH * most {
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
    fn in_vain(&self, leave: &[&Stake<'_>], solution: &Solution) -> HashSet<usize> {
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
            before - after <= before * SAVED_MIN_PER_MILLE / 1000.0
        };
        (0..leave.len()).filter(saves_little).collect()
    }

    fn made(&self, leave: &[Stake<'_>], trial: Trial) -> Move {
        let Solution {
            mut claims, placed, ..
        } = trial.solution;
        // Whatever is launched of what a claim may be, the whole costs less than what leaves.
        let room = trial.before * (1.0 - SAVED_MIN_PER_MILLE / 1000.0) / trial.after;
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

fn cheap(own: Stake<'_>) -> (Stake<'_>, Verdict) {
    let price = Price::new(own.price).unwrap_or_default();
    (own, Verdict::NotCheaper { price })
}

/// What pods take of a node, as the greatest of their shares.
#[expect(clippy::cast_precision_loss, reason = "amounts are far below 2^53")]
fn share(part: &Resources, whole: &Resources) -> f64 {
    let of = |part: i64, whole: i64| part.max(0) as f64 / whole.max(1) as f64;
    let cpu = of(part.cpu_milli, whole.cpu_milli);
    cpu.max(of(part.memory, whole.memory)).max(1e-9)
}

fn drop_stuck<'s>(
    stakes: &mut Vec<Stake<'s>>,
    stuck: &BTreeMap<NodeName, PodKey>,
    idle: &mut Idle<'s>,
) {
    for at in (0..stakes.len()).rev() {
        if let Some(pod) = stuck.get(stakes[at].name) {
            idle.push((stakes.remove(at), Verdict::NoPlace { pod: pod.clone() }));
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
