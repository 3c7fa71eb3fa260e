//! Which nodes leave for which new ones: those whose pods go to the same, directly or through
//! others, are swapped together.
//! It must not know how they are found.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};

use crate::model::id::{NodeName, PodKey};
use crate::model::labels::INSTANCE_TYPE;
use crate::scheduling::{NewNodeClaim, Solution};
use crate::state::candidates::Candidate;
use crate::state::what_if::WhatIf;

/// A node that leaves.
#[derive(Clone, Copy, Debug)]
pub struct LeavingNode<'s> {
    /// Its instance type.
    pub instance_type: &'s str,
    /// What it costs, in $/h.
    pub price: f64,
    /// What its leaving disrupts.
    pub cost: f64,
}

impl<'s> LeavingNode<'s> {
    /// A candidate that costs so much.
    pub fn of(candidate: &'s Candidate<'_>, price: f64) -> Self {
        let instance_type = candidate.node.labels.get(INSTANCE_TYPE);
        Self {
            instance_type: instance_type.map_or("", String::as_str),
            price,
            cost: candidate.cost,
        }
    }
}

/// Nodes that leave together, and new ones, as parts that have nothing to do with each other.
#[derive(Clone, Debug)]
pub struct ReplacementGroups<'s> {
    /// The part that each node belongs to, in their order.
    pub parts: Vec<usize>,
    /// How many nodes there are in each part, by its number.
    pub counts: HashMap<usize, usize>,
    /// The new nodes in their order, with their part; none where all their pods are of others.
    pub claims: Vec<(Option<usize>, &'s NewNodeClaim)>,
}

impl<'s> ReplacementGroups<'s> {
    /// The parts of these nodes by where their pods go.
    pub fn new<'n>(
        field: &WhatIf<'_>,
        nodes: impl Iterator<Item = &'n NodeName>,
        solution: &'s Solution,
    ) -> Self {
        let mut homes: HashMap<&PodKey, usize> = HashMap::default();
        let mut count = 0;
        for (at, name) in nodes.enumerate() {
            let tenancy = field.tenancies.get(name);
            let pods = tenancy.map_or(&[][..], |own| &own.pods);
            homes.extend(pods.iter().map(|pod| (&pod.key, at)));
            count = at + 1;
        }
        let mut groups = Groups::new(count);
        let mut firsts = Vec::new();
        for claim in &solution.claims {
            let mut from = claim.pods.iter().filter_map(|pod| homes.get(pod).copied());
            let first = from.next();
            for (first, other) in first.into_iter().cycle().zip(from) {
                groups.join(first, other);
            }
            firsts.push(first);
        }
        let parts: Vec<usize> = (0..count).map(|at| groups.root(at)).collect();
        let mut counts = HashMap::default();
        for part in &parts {
            *counts.entry(*part).or_default() += 1;
        }
        let claims = firsts.into_iter().zip(&solution.claims);
        let claims = claims.map(|(first, claim)| (first.map(|at| parts[at]), claim));
        Self {
            claims: claims.collect(),
            parts,
            counts,
        }
    }

    /// The only node of a part, by its place; none of a part of several.
    pub fn sole(&self, part: usize) -> Option<usize> {
        // A part has the number of the first of its nodes.
        (self.counts.get(&part) == Some(&1)).then_some(part)
    }

    /// Nodes that may as well stay, by their place: one like them comes for as much, for pods that
    /// could go to them. Of many, those whose leaving disrupts most.
    /// Source: spec/disruption.md §1.9, the filter of same types.
    pub fn needless(
        &self,
        nodes: &[LeavingNode<'_>],
        price: impl Fn(&NewNodeClaim) -> f64,
    ) -> HashSet<usize> {
        let mut alike: BTreeMap<(usize, &str), Vec<usize>> = BTreeMap::new();
        for (at, own) in nodes.iter().enumerate() {
            let key = (self.parts[at], own.instance_type);
            alike.entry(key).or_default().push(at);
        }
        for all in alike.values_mut() {
            all.sort_by(|one, other| nodes[*one].cost.total_cmp(&nodes[*other].cost));
        }
        let mut needless = HashSet::default();
        for (part, claim) in &self.claims {
            let Some(((first, _), part)) = claim.offerings.first().zip(*part) else {
                continue;
            };
            let all = alike.get_mut(&(part, first.instance_type.as_str()));
            let as_cheap = |at: &&mut Vec<usize>| {
                let last = at.last();
                last.is_some_and(|at| nodes[*at].price <= price(claim))
            };
            needless.extend(all.filter(as_cheap).and_then(Vec::pop));
        }
        needless
    }
}

/// Sets of numbers that are joined; each has the number of its least.
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
