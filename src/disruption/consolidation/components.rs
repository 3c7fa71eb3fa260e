//! Groups removed nodes with their replacements. Nodes whose pods share new nodes, directly or
//! transitively, form one group.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};

use crate::disruption::consolidation::removal_candidate::RemovalCandidate;
use crate::model::id::{NodeName, PodKey};
use crate::model::labels::INSTANCE_TYPE;
use crate::scheduling::{NewNodeClaim, Solution};
use crate::state::what_if::WhatIf;

/// Removed and new nodes, as independent groups.
#[derive(Clone, Debug)]
pub struct ReplacementGroups<'s> {
    /// The group of each removed node, in input order.
    pub group_of: Vec<usize>,
    /// Number of removed nodes by group.
    pub counts: HashMap<usize, usize>,
    /// The new nodes in order, with their group. The group is `None` if none of the moved pods is
    /// planned on the node.
    pub claims: Vec<(Option<usize>, &'s NewNodeClaim)>,
}

impl<'s> ReplacementGroups<'s> {
    /// Groups these nodes by the destinations of their pods.
    pub fn new<'n>(
        field: &WhatIf<'_>,
        nodes: impl Iterator<Item = &'n NodeName>,
        solution: &'s Solution,
    ) -> Self {
        let mut index_by_pod: HashMap<&PodKey, usize> = HashMap::default();
        let mut count = 0;
        for (index, name) in nodes.enumerate() {
            let tenancy = field.tenancies.get(name);
            let pods = tenancy.map_or(&[][..], |tenancy| &tenancy.pods);
            index_by_pod.extend(pods.iter().map(|pod| (&pod.key, index)));
            count = index + 1;
        }
        let mut groups = Groups((0..count).collect());
        let mut firsts = Vec::new();
        for claim in &solution.claims {
            let mut from = claim.pods.iter().filter_map(|pod| index_by_pod.get(pod).copied());
            let first = from.next();
            for (first, other) in first.into_iter().cycle().zip(from) {
                groups.join(first, other);
            }
            firsts.push(first);
        }
        let group_of: Vec<usize> = (0..count).map(|index| groups.root_of(index)).collect();
        let mut counts = HashMap::default();
        for group in &group_of {
            *counts.entry(*group).or_default() += 1;
        }
        let claims = firsts.into_iter().zip(&solution.claims);
        let claims = claims.map(|(first, claim)| (first.map(|index| group_of[index]), claim));
        Self { claims: claims.collect(), group_of, counts }
    }

    /// Returns the index of the only node of a group, or `None` if the group has several.
    pub fn only_node(&self, group: usize) -> Option<usize> {
        // A group has the number of its first node.
        (self.counts.get(&group) == Some(&1)).then_some(group)
    }

    /// Returns the indices of nodes that can be kept: an identical node would be launched for pods
    /// that could run on them. Among many, the nodes with the highest disruption cost are kept.
    /// Source: spec/disruption.md §1.9, the filter of same types.
    pub(super) fn needless_nodes(
        &self,
        nodes: &[&RemovalCandidate<'_>],
        price: impl Fn(&NewNodeClaim) -> f64,
    ) -> HashSet<usize> {
        let mut alike: BTreeMap<(usize, &str), Vec<usize>> = BTreeMap::new();
        for (index, node) in nodes.iter().enumerate() {
            let instance_type = node.candidate.node.labels.get(INSTANCE_TYPE);
            let key = (self.group_of[index], instance_type.map_or("", String::as_str));
            alike.entry(key).or_default().push(index);
        }
        let cost = |index: &usize| nodes[*index].candidate.cost;
        for all in alike.values_mut() {
            all.sort_by(|one, other| cost(one).total_cmp(&cost(other)));
        }
        let mut needless = HashSet::default();
        for (group, claim) in &self.claims {
            let Some(((first, _), group)) = claim.offerings.first().zip(*group) else {
                continue;
            };
            let all = alike.get_mut(&(group, first.instance_type.as_str()));
            needless.extend(
                all.filter(|nodes_left| {
                    let last = nodes_left.last();
                    last.is_some_and(|index| nodes[*index].price <= price(claim))
                })
                .and_then(Vec::pop),
            );
        }
        needless
    }
}

/// Disjoint sets of numbers. The smallest member identifies a set.
struct Groups(Vec<usize>);

impl Groups {
    fn root_of(&mut self, mut at: usize) -> usize {
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root_of(one), self.root_of(other));
        self.0[one.max(other)] = one.min(other);
    }
}
