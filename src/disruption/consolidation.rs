//! Consolidation: finds nodes that cost more than their pods need. All candidates are evaluated as
//! one problem. The result is the set of nodes whose pods fit on other nodes, or on cheaper ones,
//! with the least disruption.
//!
//! The cost of a fresh plan for all pods shows how much each node wastes. The most wasteful nodes
//! are removed first, as many as needed to reach nearly all possible savings. A node whose removal
//! saves nothing is kept. docs/decisions/027-consolidation.md explains why nodes are not evaluated
//! one by one.

// A candidate for removal, or the verdict against it.
mod removal_candidate;
// Search for the number of nodes to remove.
pub mod search;
// Cheaper offerings for replacement nodes.
pub mod replacement;
// Groups of removed nodes and their replacements.
pub mod components;
// Assignment of identical pods that keeps zones.
pub mod keep_zones;
// Outcome of a what-if removal, and whether it saves enough.
pub mod outcome;

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};
use jiff::Timestamp;

use crate::disruption::balanced::Balance;
use crate::disruption::budgets::Budgets;
use crate::disruption::consolidation::components::ReplacementGroups;
use crate::disruption::consolidation::keep_zones::keep_pods_in_zones;
use crate::disruption::consolidation::outcome::{RemovalOutcome, SAVED_MIN};
use crate::disruption::consolidation::removal_candidate::{RemovalCandidate, candidate_or_verdict};
use crate::disruption::consolidation::replacement::{cheaper_offerings, offerings_up_to};
use crate::disruption::consolidation::search::{RemovalSearch, is_enough};
use crate::disruption::eligibility::closed_nodes;
use crate::disruption::verdict::{RetainedNode, Verdict};
use crate::model::id::{NodeName, PodKey};
use crate::model::instance::{CapacityType, OfferingKey, Price};
use crate::model::labels::CAPACITY_TYPE;
use crate::model::pool::Reason;
use crate::scheduling::solution_cost::{NodePurchase, Size};
use crate::scheduling::{NewNodeClaim, solve_if_wanted};
use crate::state::candidates::DisruptionView;
use crate::state::snapshot::NodeRef;
use crate::state::what_if::WhatIf;

/// Nodes to remove together, with their replacements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsolidationAction {
    /// The nodes.
    pub nodes: Vec<NodeName>,
    /// New nodes for the pods of the removed nodes. Each offering of a new node is cheaper than the
    /// removed nodes.
    pub claims: Vec<NewNodeClaim>,
    /// Pods that move to existing nodes.
    pub placed: Vec<(NodeRef, Vec<PodKey>)>,
    /// Savings in $/h.
    pub saves: f64,
}

/// Minimum relative price reduction of replacements.
const CHEAPER_MIN: f64 = 0.03;

/// Maximum search effort: planned pods per movable pod. The second value is the minimum effort that
/// is counted for a small set of nodes.
const EFFORT_MAX: f64 = 1.0;
const EFFORT_MIN: f64 = 0.125;

/// Up to this number of removed nodes, an additional plan checks whether nodes that would be
/// replaced by the same type can be kept. With more nodes the difference is negligible.
const ALIKE_MAX: usize = 32;

/// Maximum rounds that drop nodes whose removal saves nothing, or whose pods cannot be scheduled.
const ROUNDS_MAX: usize = 4;

/// Returns the nodes to consolidate now, and the verdicts for all others.
pub fn consolidate<'a>(
    disruption_view: &'a DisruptionView<'a>,
    field: &WhatIf<'a>,
    budgets: &mut Budgets<'_>,
    now: Timestamp,
) -> (Option<ConsolidationAction>, Vec<RetainedNode>) {
    let mut kept = Vec::new();
    let mut candidates: Vec<RemovalCandidate<'_>> = Vec::new();
    for candidate in
        disruption_view.candidates.iter().filter(|candidate| !budgets.has_acquired(candidate))
    {
        match candidate_or_verdict(candidate, disruption_view, field, now) {
            Ok(removal) => candidates.push(removal),
            Err(verdict) => kept.push(RetainedNode::new(candidate, Reason::Underutilized, verdict)),
        }
    }
    let search = Search {
        field,
        now,
        node_overhead_price: disruption_view.cluster.scheduling.node_overhead_price.usd_per_h(),
        balance: Balance::new(disruption_view),
        disruption_view,
        closed: closed_nodes(disruption_view, field, now),
    };
    let (mut found, mut retained) = search.find_removal(candidates, budgets);
    let mut set_aside: RetainedCandidates<'_> = Vec::new();
    for _ in 0..ROUNDS_MAX {
        if found.is_some() || !retained.iter().any(|node| search.is_set_aside(node)) {
            break;
        }
        let (stay, others): (RetainedCandidates<'_>, RetainedCandidates<'_>) =
            retained.into_iter().partition(|node| search.is_set_aside(node));
        set_aside.extend(stay);
        let others = others.into_iter().map(|(node, _)| node).collect();
        (found, retained) = search.find_removal(others, budgets);
    }
    retained.extend(set_aside);
    kept.extend(
        retained.into_iter().map(|(node, verdict)| {
            RetainedNode::new(node.candidate, Reason::Underutilized, verdict)
        }),
    );
    (found, kept)
}

/// A node that is not removed, and why.
type RetainedCandidate<'s> = (RemovalCandidate<'s>, Verdict);

type RetainedCandidates<'s> = Vec<RetainedCandidate<'s>>;

/// Evaluates the removal of sets of nodes.
struct Search<'f, 'a> {
    field: &'f WhatIf<'a>,
    now: Timestamp,
    node_overhead_price: f64,
    balance: Balance<'f>,
    disruption_view: &'f DisruptionView<'f>,
    /// Nodes that accept no pods.
    closed: Vec<&'f NodeName>,
}

impl<'a> Search<'_, 'a> {
    fn find_removal<'s>(
        &self,
        mut candidates: Vec<RemovalCandidate<'s>>,
        budgets: &mut Budgets<'_>,
    ) -> (Option<ConsolidationAction>, RetainedCandidates<'s>) {
        let mut retained: RetainedCandidates<'s> = Vec::new();
        if candidates.is_empty() {
            return (None, retained);
        }
        let (bought, saved) = self.plan_all_removed(&mut candidates, &mut retained);
        self.set_waste(&mut candidates, &bought);
        candidates.sort_by(|one, other| {
            let ratio = other.waste / other.candidate.cost;
            let by_waste = ratio.total_cmp(&(one.waste / one.candidate.cost));
            by_waste.then_with(|| one.name.cmp(other.name))
        });
        let (count, outcome) = self.min_sufficient_removal(&candidates, saved);
        let rest = candidates.split_off(count);
        let (mut to_remove, mut later) = (Vec::new(), Vec::new());
        for node in candidates {
            match budgets.try_acquire(node.candidate, Reason::Underutilized) {
                Ok(()) => to_remove.push(node),
                Err(verdict) => later.push((node, verdict)),
            }
        }
        let (found, not_replaceable) = if to_remove.is_empty() {
            Default::default()
        } else {
            self.drop_unprofitable(&to_remove, &later, outcome.filter(|_| later.is_empty()))
        };
        for index in (0..to_remove.len())
            .rev()
            .filter(|index| !found.as_ref().is_some_and(|(kept, _)| kept.contains(index)))
        {
            budgets.release(to_remove[index].candidate);
            let (node, mut verdict) = self.keep_node(to_remove.remove(index));
            if not_replaceable.contains(&index) {
                let price = Price::new(node.price).unwrap_or_default();
                verdict = Verdict::TooFewReplacementTypes { price };
            }
            retained.push((node, verdict));
        }
        retained.extend(later);
        retained.extend(rest.into_iter().map(|node| self.keep_node(node)));
        let action = found.map(|(_, outcome)| self.action_for(&to_remove, outcome));
        (action, retained)
    }

    /// Plans the removal of all nodes, and returns the savings if known. Nodes with pods that
    /// cannot be scheduled elsewhere are left out.
    fn plan_all_removed<'s>(
        &self,
        candidates: &mut Vec<RemovalCandidate<'s>>,
        retained: &mut RetainedCandidates<'s>,
    ) -> (Vec<NodePurchase>, Option<f64>) {
        let mut bought = Vec::new();
        for _ in 0..=ROUNDS_MAX {
            let all: Vec<&RemovalCandidate<'_>> = candidates.iter().collect();
            let outcome = self.removal_outcome(&all, &[], |_| false);
            if outcome.stuck.is_empty() {
                let saved = outcome.justified_savings();
                return (outcome.bought, Some(saved));
            }
            drop_stuck(candidates, &outcome.stuck, retained);
            bought = outcome.bought;
        }
        (bought, None)
    }

    /// Returns whether the other nodes are tried without this one: its pool does not approve the
    /// whole set, or it may not be replaced.
    fn is_set_aside(&self, retained: &RetainedCandidate<'_>) -> bool {
        let (node, verdict) = retained;
        let inflexible = matches!(verdict, Verdict::TooFewReplacementTypes { .. });
        inflexible || self.balance.is_balanced(node.candidate)
    }

    /// Keeps a node because its removal saves nothing or too little.
    fn keep_node<'s>(&self, node: RemovalCandidate<'s>) -> RetainedCandidate<'s> {
        let price = Price::new(node.price).unwrap_or_default();
        let verdict = match self.balance.is_balanced(node.candidate) {
            true => Verdict::NotWorthDisruption { price },
            false => Verdict::NotCheaper { price },
        };
        (node, verdict)
    }

    /// Returns the outcome if these nodes are removed and the nodes in `closed` accept no pods.
    /// Placements are computed if all pods can be scheduled and `is_wanted` accepts the savings.
    fn removal_outcome(
        &self,
        to_remove: &[&RemovalCandidate<'_>],
        closed: &[&NodeName],
        is_wanted: impl Fn(f64) -> bool,
    ) -> RemovalOutcome {
        let nodes: HashSet<&NodeName> = to_remove.iter().map(|node| node.name).collect();
        let closed = closed.iter().chain(&self.closed).copied().collect();
        let snapshot = self.field.without_nodes(&nodes, &closed);
        let before = to_remove.iter().map(|node| node.price + self.node_overhead_price).sum();
        let (cost, solution) = solve_if_wanted(&snapshot, self.now, |cost| {
            cost.left.is_empty() && is_wanted(before - self.total_price(&cost.bought))
        });
        let after = match &solution {
            Some(solution) => solution.claims.iter().map(|claim| self.price_of(claim)).sum(),
            None => self.total_price(&cost.bought),
        };
        let late = solution.iter().flat_map(|solution| &solution.unplaced);
        let left: HashSet<&PodKey> = cost.left.iter().chain(late.map(|pod| &pod.pod)).collect();
        let pods = snapshot.pending.iter().filter(|_| !left.is_empty());
        let stuck = pods.filter(|pod| left.contains(&pod.key));
        let stuck = stuck.filter_map(|pod| {
            let node = pod.node.as_ref().filter(|node| nodes.contains(node))?;
            Some((node.clone(), pod.key.clone()))
        });
        let candidates = to_remove.iter().map(|node| node.candidate);
        RemovalOutcome {
            balanced: self.balance.approves(candidates, before - after),
            stuck: stuck.collect(),
            bought: cost.bought,
            solution,
            before,
            after,
        }
    }

    /// Returns the total price of new nodes, including the per-node cost.
    fn total_price(&self, bought: &[NodePurchase]) -> f64 {
        let nodes = bought.iter();
        nodes.map(|node| node.price + self.node_overhead_price).sum()
    }

    fn price_of(&self, claim: &NewNodeClaim) -> f64 {
        let first = claim.offerings.first();
        first.map_or(0.0, |(_, price)| price.usd_per_h()) + self.node_overhead_price
    }

    /// Computes the waste of each node: its price minus the price that a fresh plan pays for the
    /// same pods.
    fn set_waste(&self, candidates: &mut [RemovalCandidate<'_>], afresh: &[NodePurchase]) {
        // Value and number of pods by requests: pods with equal requests have equal value.
        let mut worth: BTreeMap<Size, (f64, f64)> = BTreeMap::new();
        for purchase in afresh {
            let cpu = total_request(&purchase.pods, |size| size.0);
            let memory = total_request(&purchase.pods, |size| size.1);
            let shares = purchase.pods.iter();
            let shares =
                shares.map(|(size, count)| request_share(size, cpu, memory) * as_count(*count));
            let unit_price = (purchase.price + self.node_overhead_price) / shares.sum::<f64>();
            for (size, count) in &purchase.pods {
                let entry = worth.entry(*size).or_default();
                entry.0 += unit_price * request_share(size, cpu, memory) * as_count(*count);
                entry.1 += as_count(*count);
            }
        }
        for node in candidates {
            let tenancy = self.field.tenancies.get(node.name);
            let pods = tenancy.map_or(&[][..], |tenancy| &tenancy.pods);
            let needed = pods.iter().filter_map(|pod| {
                let asks = &pod.requests;
                let (sum, count) = worth.get(&(asks.cpu_milli.max(0), asks.memory.max(0)))?;
                Some(sum / count)
            });
            node.waste = node.price + self.node_overhead_price - needed.sum::<f64>();
        }
    }

    /// Returns how many of the nodes, most wasteful first, must be removed for nearly all possible
    /// savings, with the plan if known. `None` if nothing can be saved. `savings_of_all` are the
    /// savings of removing all nodes.
    fn min_sufficient_removal(
        &self,
        candidates: &[RemovalCandidate<'_>],
        savings_of_all: Option<f64>,
    ) -> (usize, Option<RemovalOutcome>) {
        let mut search =
            RemovalSearch::new(candidates.iter().map(|node| node.price + self.node_overhead_price));
        if let Some(saved) = savings_of_all {
            search.record_savings(candidates.len(), saved);
        }
        let total_pods = pods_on(candidates);
        let mut evaluated_pods = 0.0;
        let mut known: Option<(usize, RemovalOutcome)> = None;
        // At most the cost of all wasted capacity can be saved. The `balanced` policy may approve
        // the nodes needed for that even if it does not approve the removal of all nodes.
        let mut nodes = candidates.iter();
        let is_balanced = nodes.any(|node| self.balance.is_balanced(node.candidate));
        let first = match search.smallest_sufficient() {
            None if !is_balanced => {
                candidates.iter().filter(|node| node.waste > node.price * SAVED_MIN).count()
            }
            _ => search.min_count_for(candidates.iter().map(|node| node.waste.max(0.0)).sum()),
        };
        let mut next = Some(first).filter(|count| (1..candidates.len()).contains(count));
        next = next.or_else(|| search.next_count());
        while let Some(count) = next.filter(|_| evaluated_pods < EFFORT_MAX * total_pods) {
            evaluated_pods += pods_on(&candidates[..count]).max(EFFORT_MIN * total_pods);
            let set: Vec<&RemovalCandidate<'_>> = candidates[..count].iter().collect();
            let outcome = self.removal_outcome(&set, &[], |saved| {
                let mut search = search.clone();
                search.record_savings(count, saved);
                search.smallest_sufficient() == Some(count)
            });
            search.record_savings(count, outcome.justified_savings());
            if outcome.solution.is_some() {
                known = Some((count, outcome));
            }
            next = search.next_count();
        }
        let count = search.smallest_sufficient().unwrap_or(0);
        let outcome = known.filter(|outcome| outcome.0 == count);
        (count, outcome.map(|outcome| outcome.1))
    }

    /// Returns the nodes to remove and the plan for their pods, without nodes whose removal saves
    /// nothing. Nodes that will be removed later accept no pods, so that no pod moves twice, unless
    /// that prevents all savings. The known outcome is that of removing all of `to_remove`. Also
    /// returns the nodes that may not be replaced.
    fn drop_unprofitable(
        &self,
        to_remove: &[RemovalCandidate<'_>],
        later: &[(RemovalCandidate<'_>, Verdict)],
        mut known: Option<RemovalOutcome>,
    ) -> (Option<(HashSet<usize>, RemovalOutcome)>, HashSet<usize>) {
        let mut not_replaceable = HashSet::default();
        let later: Vec<&NodeName> = later.iter().map(|(node, _)| node.name).collect();
        let all_open = (!later.is_empty()).then_some(&[][..]);
        for closed in [Some(&later[..]), all_open].into_iter().flatten() {
            let mut found: Option<(HashSet<usize>, RemovalOutcome)> = None;
            let mut places: Vec<usize> = (0..to_remove.len()).collect();
            for _ in 0..ROUNDS_MAX {
                let set: Vec<_> = places.iter().map(|at| &to_remove[*at]).collect();
                if set.is_empty() {
                    break;
                }
                let mut outcome =
                    known.take().unwrap_or_else(|| self.removal_outcome(&set, closed, |_| true));
                if let Some(solution) = &mut outcome.solution {
                    let nodes = set.iter().map(|node| node.name).collect();
                    keep_pods_in_zones(solution, &self.field.pending_without(&nodes), self.field);
                }
                let solution = outcome.solution.as_ref();
                let Some(solution) = solution.filter(|_| outcome.stuck.is_empty()) else {
                    places.retain(|index| !outcome.stuck.contains_key(to_remove[*index].name));
                    continue;
                };
                let groups =
                    ReplacementGroups::new(self.field, set.iter().map(|node| node.name), solution);
                let inflexible = self.inflexible_groups(&set, &groups, &outcome);
                if !inflexible.is_empty() {
                    let left_out = places.iter().enumerate();
                    let left_out = left_out.filter(|(place, _)| inflexible.contains(place));
                    not_replaceable.extend(left_out.map(|(_, node)| *node));
                    places = without_places(&places, &inflexible);
                    continue;
                }
                let mut unprofitable = self.unprofitable_groups(&set, &groups);
                if found.is_none() && set.len() <= ALIKE_MAX {
                    // A replacement by similar nodes must save enough, too.
                    let least = 1.0 + SAVED_MIN;
                    unprofitable.extend(groups.needless_nodes(&set, |claim| {
                        (self.price_of(claim) - self.node_overhead_price) * least
                    }));
                }
                let kept = without_places(&places, &unprofitable);
                let known_savings = found.as_ref().map_or(0.0, |(_, outcome)| outcome.saved());
                if outcome.is_worth_it() && is_enough(outcome.saved(), known_savings) {
                    found = Some((places.into_iter().collect(), outcome));
                }
                if unprofitable.is_empty() {
                    break;
                }
                places = kept;
            }
            if found.is_some() {
                return (found, not_replaceable);
            }
        }
        (None, not_replaceable)
    }

    /// Returns the groups of nodes that save too little together.
    fn unprofitable_groups(
        &self,
        to_remove: &[&RemovalCandidate<'_>],
        groups: &ReplacementGroups<'_>,
    ) -> HashSet<usize> {
        let mut sums: HashMap<usize, (f64, f64)> = HashMap::default();
        for (node, group) in to_remove.iter().zip(&groups.group_of) {
            sums.entry(*group).or_default().0 += node.price + self.node_overhead_price;
        }
        for (group, claim) in &groups.claims {
            let sum = group.and_then(|group| sums.get_mut(&group));
            if let Some((_, after)) = sum {
                *after += self.price_of(claim);
            }
        }
        (0..to_remove.len())
            .filter(|index| {
                let sum = sums.get(&groups.group_of[*index]);
                let (before, after) = sum.copied().unwrap_or_default();
                before - after <= before * SAVED_MIN
            })
            .collect()
    }

    /// Returns the groups of nodes that have too few replacement types.
    fn inflexible_groups(
        &self,
        to_remove: &[&RemovalCandidate<'_>],
        groups: &ReplacementGroups<'_>,
        outcome: &RemovalOutcome,
    ) -> HashSet<usize> {
        let claims = groups.claims.iter();
        let not_replaceable = claims.filter(|(group, claim)| {
            self.replacement_offerings(to_remove, groups, *group, claim, outcome).is_none()
        });
        let not_replaceable: HashSet<usize> =
            not_replaceable.filter_map(|(group, _)| *group).collect();
        let all = 0..to_remove.len();
        all.filter(|index| not_replaceable.contains(&groups.group_of[*index])).collect()
    }

    /// Returns the offerings of a claim that make the whole replacement cheaper than the removed
    /// nodes, whichever of them is launched. `None` if there are too few such offerings.
    fn replacement_offerings(
        &self,
        to_remove: &[&RemovalCandidate<'_>],
        groups: &ReplacementGroups<'_>,
        group: Option<usize>,
        claim: &NewNodeClaim,
        outcome: &RemovalOutcome,
    ) -> Option<Vec<(OfferingKey, Price)>> {
        let pool = self.disruption_view.cluster.pool(claim.pool.as_str())?;
        let catalog = self.disruption_view.catalogs.get(&claim.pool)?;
        let only_node = group.and_then(|group| groups.only_node(group));
        let spot = only_node.is_some_and(|index| {
            let labels = &to_remove[index].candidate.node.labels;
            labels.get(CAPACITY_TYPE).map(String::as_str) == Some(CapacityType::Spot.as_str())
        });
        cheaper_offerings(claim, self.max_price(claim, outcome), spot, pool, catalog)
    }

    /// Returns the maximum price of a claim.
    fn max_price(&self, claim: &NewNodeClaim, outcome: &RemovalOutcome) -> f64 {
        let total = outcome.before * (1.0 - CHEAPER_MIN);
        // If all replacements cost nothing, the price is not limited.
        let share = match outcome.after > 0.0 {
            true => self.price_of(claim) / outcome.after,
            false => 1.0,
        };
        total * share - self.node_overhead_price
    }

    fn action_for(
        &self,
        to_remove: &[RemovalCandidate<'_>],
        mut outcome: RemovalOutcome,
    ) -> ConsolidationAction {
        let mut solution = outcome.solution.take().unwrap_or_default();
        let all: Vec<&RemovalCandidate<'_>> = to_remove.iter().collect();
        let groups =
            ReplacementGroups::new(self.field, all.iter().map(|node| node.name), &solution);
        let offerings_by_claim = groups.claims.iter().map(|(group, claim)| {
            let left = self.replacement_offerings(&all, &groups, *group, claim, &outcome);
            left.unwrap_or_else(|| offerings_up_to(claim, self.max_price(claim, &outcome)))
        });
        let offerings_by_claim: Vec<Vec<(OfferingKey, Price)>> = offerings_by_claim.collect();
        for (claim, offerings) in solution.claims.iter_mut().zip(offerings_by_claim) {
            claim.offerings = offerings;
        }
        ConsolidationAction {
            nodes: all.iter().map(|node| node.name.clone()).collect(),
            claims: solution.claims,
            placed: solution.placed,
            saves: outcome.saved(),
        }
    }
}

/// Returns the indices at these places, except the excluded places.
fn without_places(indices: &[usize], excluded: &HashSet<usize>) -> Vec<usize> {
    let left = indices.iter().enumerate();
    left.filter(|(place, _)| !excluded.contains(place)).map(|(_, index)| *index).collect()
}

/// Returns the number of pods to move from these nodes.
fn pods_on(nodes: &[RemovalCandidate<'_>]) -> f64 {
    let pods: usize = nodes.iter().map(|node| node.pods).sum();
    as_count(pods as u64)
}

/// Returns the total request of pods for one resource, at least one.
fn total_request(pods: &[(Size, u64)], amount: fn(&Size) -> i64) -> f64 {
    let each = pods.iter();
    let each = each.map(|(size, count)| as_float(amount(size)) * as_count(*count));
    each.sum::<f64>().max(1.0)
}

/// Returns the fraction of the total requested cpu or memory that one pod requests, whichever is
/// higher.
fn request_share(size: &Size, cpu: f64, memory: f64) -> f64 {
    let share = (as_float(size.0) / cpu).max(as_float(size.1) / memory);
    share.max(1e-9)
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
    candidates: &mut Vec<RemovalCandidate<'s>>,
    stuck: &BTreeMap<NodeName, PodKey>,
    retained: &mut RetainedCandidates<'s>,
) {
    for index in (0..candidates.len()).rev() {
        if let Some(pod) = stuck.get(candidates[index].name) {
            retained.push((candidates.remove(index), Verdict::NoPlace { pod: pod.clone() }));
        }
    }
}
