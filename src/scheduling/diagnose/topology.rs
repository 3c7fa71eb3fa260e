//! Explains which topology rules reject a new node, and in which domains.

use std::collections::BTreeSet;

use crate::scheduling::domains::DomainSet;
use crate::scheduling::index::{
    CounterIndex, DomainIndex, DomainLocations, KindIndex, LocationIndex,
};
use crate::scheduling::packing::context::PackingContext;
use crate::scheduling::packing::initial_topology::add_cells;
use crate::scheduling::problem::Problem;
use crate::scheduling::problem::pod_constraints::HOST;
use crate::scheduling::rejection::{
    DomainDetail, PLACES_TOLD, RejectionDetail, RuleKind, TopologyRuleDetail, bounded_text,
};
use crate::scheduling::topology::topology_state::{Match, NOWHERE, TopologyState};
use crate::scheduling::topology::{DomainCounter, TopologyCheck};

/// Maximum number of listed rules per pod. The first few show what to fix.
const RULES_TOLD: usize = 5;

/// Planned locations of all pods, and a location for every domain combination.
pub(crate) struct TopologyDiagnosis<'p> {
    problem: &'p Problem<'p>,
    cells: &'p DomainSet,
    board: TopologyState<'p>,
    sites: DomainLocations,
    /// The location of a new node that is in no domain except that of its own host name.
    anywhere: LocationIndex,
}

impl<'p> TopologyDiagnosis<'p> {
    /// `board` contains all nodes, and all pods that are bound at the end of the plan.
    pub(crate) fn new(ground: &PackingContext<'p, '_>, mut board: TopologyState<'p>) -> Self {
        let sites = add_cells(ground.problem, ground.cells, &mut board);
        Self {
            problem: ground.problem,
            cells: ground.cells,
            anywhere: board.sites.add_location(false, &[], |_| Match::Yes),
            board,
            sites,
        }
    }

    /// Returns why the topology rules reject a pod in these domains, or `None` if the pod has no
    /// rules.
    pub(crate) fn rejection_in(
        &mut self,
        kind: KindIndex,
        cells: &[DomainIndex],
    ) -> Option<RejectionDetail> {
        let checks = &self.board.topology.checks[kind];
        if checks.is_empty() {
            return None;
        }
        let mut open = vec![true; cells.len().max(1)];
        let mut rules: Vec<TopologyRuleDetail> = Vec::new();
        for check in checks {
            let holds: Vec<bool> = match cells {
                [] => {
                    vec![self.cells.keys.is_empty() && self.holds_on_new_node(check, self.anywhere)]
                }
                cells => cells
                    .iter()
                    .map(|cell| self.holds_on_new_node(check, self.sites[*cell]))
                    .collect(),
            };
            for (open, holds) in open.iter_mut().zip(&holds) {
                *open &= holds;
            }
            let rule = self.rule_detail(check, cells, &holds);
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        if rules.iter().any(|rule| rule.open < rule.reachable.max(1)) {
            rules.retain(|rule| rule.open < rule.reachable.max(1));
        }
        // Makes the result independent of the order of pods and rules.
        rules.sort();
        rules.truncate(RULES_TOLD);
        Some(RejectionDetail::Places {
            reachable: open.len(),
            open: open.into_iter().filter(|open| *open).count(),
            rules,
        })
    }

    /// Returns the domains in which a new node might satisfy the rules of a kind once all locations
    /// are known. `None` in the result stands for a node without relevant labels.
    pub(crate) fn possible_domains(&self, kind: KindIndex) -> Vec<Option<DomainIndex>> {
        let mut cells: Vec<Option<DomainIndex>> = match self.cells.keys.is_empty() {
            true => vec![None],
            false => self.sites.keys().map(Some).collect(),
        };
        cells.retain(|cell| {
            let site = cell.map_or(self.anywhere, |cell| self.sites[cell]);
            let mut checks = self.board.topology.checks[kind].iter();
            checks.all(|check| self.may_hold(check, site))
        });
        cells
    }

    fn may_hold(&self, check: &TopologyCheck, site: LocationIndex) -> bool {
        matches!(check, TopologyCheck::Near { beside: true, .. })
            || self
                .decided_on_new_node(check, site)
                .unwrap_or_else(|| self.board.may_hold(check, site))
    }

    /// Returns whether a check would hold on a new node at a location.
    fn holds_on_new_node(&mut self, check: &TopologyCheck, site: LocationIndex) -> bool {
        let decided = self.decided_on_new_node(check, site);
        decided.unwrap_or_else(|| self.board.holds(check, site))
    }

    /// Returns whether a check holds on a new node at a location, unless this depends on the counts
    /// of its domains.
    fn decided_on_new_node(&self, check: &TopologyCheck, site: LocationIndex) -> Option<bool> {
        let topology = self.board.topology;
        match check {
            // A new node has no pods.
            TopologyCheck::Free { tally } | TopologyCheck::Even { tally, .. }
                if topology.key_of(*tally) == HOST =>
            {
                Some(true)
            }
            // A domain without nodes has the fewest pods.
            TopologyCheck::Even { tally, .. } => {
                let has_domain =
                    self.board.sites.domain_of(topology.key_of(*tally), site) != NOWHERE;
                (has_domain && !self.board.has_domain(*tally, site)).then_some(true)
            }
            TopologyCheck::Near { tallies, first, .. }
                if tallies.iter().any(|tally| topology.key_of(*tally) == HOST) =>
            {
                Some(*first && tallies.iter().all(|tally| self.board.total_of(*tally) == 0))
            }
            _ => None,
        }
    }

    /// Describes a check that holds in some of these domains.
    fn rule_detail(
        &self,
        check: &TopologyCheck,
        cells: &[DomainIndex],
        holds: &[bool],
    ) -> TopologyRuleDetail {
        let topology = self.board.topology;
        let (kind, tallies) = match check {
            TopologyCheck::Near { tallies, .. } => (RuleKind::Affinity, &tallies[..]),
            TopologyCheck::Even { tally, skew, .. } => {
                (RuleKind::Spread(*skew), std::slice::from_ref(tally))
            }
            TopologyCheck::Free { tally } => match topology.tallies[*tally] {
                DomainCounter::Owners { .. } => (RuleKind::Repelled, std::slice::from_ref(tally)),
                _ => (RuleKind::AntiAffinity, std::slice::from_ref(tally)),
            },
        };
        let keys: Vec<&str> = tallies
            .iter()
            .map(|tally| &self.problem.groups.keys[topology.key_of(*tally)][..])
            .collect();
        // A domain is one value of each key; a new node is its own domain.
        let mut reachable: BTreeSet<Vec<Option<&str>>> = BTreeSet::new();
        let mut open = BTreeSet::new();
        for (cell, holds) in cells.iter().zip(holds) {
            let values = keys.iter().map(|key| {
                let index = self.cells.keys.iter().position(|known| known == key)?;
                self.cells.all[*cell][index].as_deref()
            });
            let values: Vec<Option<&str>> = values.collect();
            let is_place = keys
                .iter()
                .zip(&values)
                .all(|(key, value)| value.is_some() || *key == self.problem.groups.keys[HOST]);
            if is_place && *holds {
                open.insert(values.clone());
            }
            if is_place {
                reachable.insert(values);
            }
        }
        if cells.is_empty() && self.cells.keys.is_empty() {
            reachable.insert(Vec::new());
            open.extend(holds[0].then(Vec::new));
        }
        let pods = tallies.iter().map(|tally| self.board.total_of(*tally));
        TopologyRuleDetail {
            kind,
            keys: keys.iter().map(bounded_text).collect(),
            reachable: reachable.len(),
            open: open.len(),
            pods: pods.max().unwrap_or(0),
            places: self.informative_domains(kind, tallies, &|name| {
                reachable.iter().flatten().any(|value| *value == Some(name))
            }),
        }
    }

    /// Returns the most informative domains of a rule.
    fn informative_domains(
        &self,
        kind: RuleKind,
        tallies: &[CounterIndex],
        reach: &dyn Fn(&str) -> bool,
    ) -> Vec<DomainDetail> {
        let topology = self.board.topology;
        let mut by_domain = tallies.iter().filter(|tally| topology.key_of(**tally) != HOST);
        let Some(tally) = by_domain.next() else {
            return Vec::new();
        };
        let mut places = self.board.named_domains(*tally);
        match kind {
            RuleKind::Spread(_) => {
                places.retain(|domain| domain.2);
                let least = places.iter().map(|domain| domain.1).min();
                places.retain(|domain| Some(domain.1) == least);
            }
            RuleKind::Affinity => places.retain(|domain| domain.1 > 0),
            _ => places.retain(|domain| domain.1 > 0 && reach(domain.0)),
        }
        places.truncate(PLACES_TOLD);
        places
            .into_iter()
            .map(|(name, pods, _)| DomainDetail {
                name: bounded_text(name),
                pods,
                is_reachable: reach(name),
            })
            .collect()
    }
}
