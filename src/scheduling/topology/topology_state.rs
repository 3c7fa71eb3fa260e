//! Locations with their domains and pod counts, and whether one more pod may be placed there.
//!
//! The rules are those of kube-scheduler's PodTopologySpread and InterPodAffinity filters, not
//! Karpenter's. Domains are those of existing nodes. A pod is checked against the counts at the
//! time of its binding.

use std::collections::BTreeMap;

use crate::scheduling::index::{
    CounterIndex, FilterIndex, IndexVec, KeyIndex, KindIndex, LocationIndex,
};
use crate::scheduling::problem::pod_constraints::HOST;
use crate::scheduling::topology::{DomainCounter, NodeFilter, Topology, TopologyCheck};

/// Whether a location matches a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    No,
    /// The result depends on the launch of an in-flight node.
    Maybe,
    Yes,
}

impl Match {
    pub(crate) fn from_bool(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

/// No domain: the location lacks the label, or the value of the label is unknown.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// An undecided domain: the location will have one of several values.
pub(crate) const UNSETTLED: u32 = u32::MAX - 1;

/// Locations: the domain for each key, and the filters they pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locations {
    places: IndexVec<KeyIndex, IndexVec<LocationIndex, u32>>,
    passes: IndexVec<FilterIndex, IndexVec<LocationIndex, Match>>,
    /// Values of each key, except the host name, with their domain number.
    values: IndexVec<KeyIndex, BTreeMap<String, u32>>,
    /// Number of domains of each key.
    counts: IndexVec<KeyIndex, u32>,
    /// Possible domains of undecided locations, by key and location.
    unsettled: BTreeMap<(KeyIndex, LocationIndex), Vec<u32>>,
}

impl Locations {
    pub(crate) fn new(topology: &Topology) -> Self {
        Self {
            places: vec![IndexVec::default(); topology.keys].into(),
            passes: vec![IndexVec::default(); topology.filters.len()].into(),
            values: vec![BTreeMap::new(); topology.keys].into(),
            counts: vec![0; topology.keys].into(),
            unsettled: BTreeMap::new(),
        }
    }

    /// Marks the domain of a location as undecided between these.
    pub(crate) fn set_undecided(&mut self, key: KeyIndex, site: LocationIndex, places: Vec<u32>) {
        self.places[key][site] = UNSETTLED;
        self.unsettled.insert((key, site), places);
    }

    /// Returns the possible domains of a location. The result is empty if the location has none.
    fn possible_domains(&self, key: KeyIndex, site: LocationIndex) -> &[u32] {
        let place = &self.places[key][site];
        match *place {
            NOWHERE => &[],
            UNSETTLED => self.unsettled.get(&(key, site)).map_or(&[], |all| all),
            _ => std::slice::from_ref(place),
        }
    }

    /// Returns the domain number of a value of a key.
    pub(crate) fn intern_domain(&mut self, key: KeyIndex, value: &str) -> u32 {
        if let Some(known) = self.values[key].get(value) {
            return *known;
        }
        let next = self.counts[key];
        self.values[key].insert(value.to_owned(), next);
        self.counts[key] = next + 1;
        next
    }

    /// Adds a location with domains for all keys except the host name. A node gets a new domain for
    /// its host name.
    pub(crate) fn add_location(
        &mut self,
        is_host: bool,
        places: &[(KeyIndex, u32)],
        passes: impl Fn(FilterIndex) -> Match,
    ) -> LocationIndex {
        for places in &mut self.places {
            places.push(NOWHERE);
        }
        let site = LocationIndex(self.places[HOST].len() - 1);
        if is_host {
            self.places[HOST][site] = self.counts[HOST];
            self.counts[HOST] += 1;
        }
        for (key, place) in places {
            self.places[*key][site] = *place;
        }
        for (filter, matches) in self.passes.iter_mut_enumerated() {
            matches.push(passes(filter));
        }
        site
    }

    /// Returns the domain of a location for a key.
    pub(crate) fn domain_of(&self, key: KeyIndex, site: LocationIndex) -> u32 {
        self.places[key][site]
    }

    /// Returns whether a location may pass a filter.
    pub(crate) fn may_pass(&self, filter: FilterIndex, site: LocationIndex) -> bool {
        self.passes[filter][site] != Match::No
    }

    fn counts_for(&self, filter: &NodeFilter, ordinal: FilterIndex, site: LocationIndex) -> Match {
        if filter.keys.iter().all(|key| self.domain_of(*key, site) != NOWHERE) {
            self.passes[ordinal][site]
        } else {
            Match::No
        }
    }
}

/// The number of pods of one counter in each domain.
#[derive(Clone, Debug, Default)]
struct DomainCounts {
    by_place: Vec<u32>,
    /// Additional pods that may be in the domain or elsewhere.
    maybe: Vec<u32>,
    /// Number of pods without a certain domain.
    adrift: u32,
    /// Whether a location that passes or may pass the filter is in the domain.
    exists: Vec<bool>,
    /// Whether a location that certainly passes the filter is in the domain.
    certain: Vec<bool>,
    /// Number of certain domains, and number of pods with a certain domain.
    places: u32,
    total: u64,
    /// Minimum over all domains, and the number of domains with it; both are recomputed if that
    /// number is zero.
    least: u32,
    at_least: u32,
}

impl DomainCounts {
    fn ensure_domain(&mut self, place: u32) -> usize {
        let place = place as usize;
        if self.exists.len() <= place {
            self.exists.resize(place + 1, false);
            self.certain.resize(place + 1, false);
            self.by_place.resize(place + 1, 0);
            self.maybe.resize(place + 1, 0);
        }
        place
    }

    fn open_domain(&mut self, place: u32, is_certain: bool) {
        let place = self.ensure_domain(place);
        if is_certain && !self.certain[place] {
            self.certain[place] = true;
            self.places += 1;
        }
        if !self.exists[place] {
            self.exists[place] = true;
            self.at_least = 0;
        }
    }

    fn add_pods(&mut self, place: u32, count: u32) {
        let index = self.ensure_domain(place);
        let before = self.by_place[index];
        self.by_place[index] = before.saturating_add(count);
        self.total += u64::from(count);
        if self.exists[index] && before == self.least && count > 0 {
            self.at_least = self.at_least.saturating_sub(1);
        }
    }

    /// Returns the highest possible count of a domain.
    fn max_in(&self, place: u32) -> u32 {
        let maybe = self.maybe.get(place as usize).copied().unwrap_or(0);
        self.count_in(place).saturating_add(maybe)
    }

    fn count_in(&self, place: u32) -> u32 {
        self.by_place.get(place as usize).copied().unwrap_or(0)
    }

    /// Returns the minimum of all domains if all undecided pods are in this domain.
    fn min_of_others(&mut self, place: u32) -> u32 {
        if self.adrift == 0 {
            return self.min_count();
        }
        let counts = self.by_place.iter().zip(&self.exists).enumerate();
        let others = counts.filter(|(index, (_, exists))| **exists && *index != place as usize);
        let least = others.map(|(_, (count, _))| *count).min();
        least.unwrap_or(u32::MAX).min(self.max_in(place))
    }

    /// Returns an upper bound of the minimum after adding a pod to this domain: it is computed from
    /// the certain domains with all their possible pods. The result is zero if there are fewer
    /// domains than `least`.
    fn max_of_min(&self, place: u32, least: u32) -> u32 {
        let domains = self.exists.iter().filter(|exists| **exists).count();
        if domains < least as usize {
            return 0;
        }
        let certain = self.certain.iter().zip(0u32..);
        let others = certain.filter(|(certain, index)| **certain && *index != place);
        let least = others.map(|(_, index)| self.max_in(index)).min();
        least.unwrap_or(u32::MAX).min(self.count_in(place))
    }

    fn min_count(&mut self) -> u32 {
        if self.at_least == 0 {
            let counts = self.by_place.iter().zip(&self.exists);
            let counts = counts.filter(|(_, exists)| **exists).map(|(count, _)| count);
            self.least = counts.clone().min().copied().unwrap_or(0);
            let at_least = counts.filter(|count| **count == self.least).count();
            self.at_least = u32::try_from(at_least).unwrap_or(1);
        }
        self.least
    }
}

/// All locations, and the counts of all counters.
#[derive(Clone, Debug)]
pub(crate) struct TopologyState<'t> {
    pub(crate) topology: &'t Topology,
    pub(crate) sites: Locations,
    /// Whether pods with topology rules may be placed on undecided locations. This is a last
    /// resort, because such pods are counted in every possible domain.
    pub(crate) takes_unsettled: bool,
    counts: IndexVec<CounterIndex, DomainCounts>,
}

impl<'t> TopologyState<'t> {
    /// Creates a state without locations.
    pub(crate) fn new(topology: &'t Topology) -> Self {
        Self {
            topology,
            sites: Locations::new(topology),
            takes_unsettled: false,
            counts: vec![DomainCounts::default(); topology.tallies.len()].into(),
        }
    }

    /// Includes the domains of a location in the topology spreads whose filter it passes.
    pub(crate) fn open_domains(&mut self, site: LocationIndex) {
        for (tally, count) in self.topology.tallies.iter().zip(&mut self.counts) {
            let DomainCounter::Spread { key, filter, .. } = tally else {
                continue;
            };
            let place = self.sites.domain_of(*key, site);
            let node_filter = &self.topology.filters[*filter];
            let pass = self.sites.counts_for(node_filter, *filter, site);
            if place < UNSETTLED && pass != Match::No {
                count.open_domain(place, pass == Match::Yes);
            }
        }
    }

    /// Includes the domain of a location in a counter, because a node may be launched there. A node
    /// that lacks one of the topology keys of the spread pods is in no domain of any of these keys.
    /// Source: kube-scheduler, PodTopologySpread.
    pub(crate) fn open_for(&mut self, tally: CounterIndex, site: LocationIndex) {
        let counter = &self.topology.tallies[tally];
        let has_all = match counter {
            DomainCounter::Spread { filter, .. } => {
                let mut keys = self.topology.filters[*filter].keys.iter();
                keys.all(|key| *key == HOST || self.sites.domain_of(*key, site) != NOWHERE)
            }
            _ => true,
        };
        let place = self.sites.domain_of(counter.topology_key(), site);
        if place < UNSETTLED && has_all {
            self.counts[tally].open_domain(place, false);
        }
    }

    /// Returns whether a pod of a kind may be bound at a location now. Source: kube-scheduler, the
    /// filters PodTopologySpread and InterPodAffinity.
    pub(crate) fn allows(&mut self, kind: KindIndex, site: LocationIndex) -> bool {
        let topology = self.topology;
        let checks = &topology.checks[kind];
        if !self.takes_unsettled
            && checks.iter().any(|check| match check {
                TopologyCheck::Free { tally } | TopologyCheck::Even { tally, .. } => {
                    self.sites.domain_of(topology.key_of(*tally), site) == UNSETTLED
                }
                TopologyCheck::Near { .. } => false,
            })
        {
            return false;
        }
        checks.iter().all(|check| self.holds(check, site))
    }

    /// Returns whether one check holds at a location, whichever of its possible domains the
    /// location gets.
    pub(crate) fn holds(&mut self, check: &TopologyCheck, site: LocationIndex) -> bool {
        match check {
            TopologyCheck::Free { tally } => {
                let count = &self.counts[*tally];
                let mut places = self.domains_at(*tally, site).iter();
                places.all(|place| count.max_in(*place) == 0)
            }
            TopologyCheck::Near { tallies, first, .. } => {
                let mut counts = tallies.iter().map(|tally| &self.counts[*tally]);
                self.has_domains(tallies, site)
                    && (tallies.iter().all(|tally| {
                        let count = &self.counts[*tally];
                        let mut places = self.domains_at(*tally, site).iter();
                        places.all(|place| count.count_in(*place) > 0)
                    }) || (*first && counts.all(|count| count.total == 0 && count.adrift == 0)))
            }
            TopologyCheck::Even { tally, skew, least, adds } => {
                let places = self.sites.possible_domains(self.topology.key_of(*tally), site);
                let count = &mut self.counts[*tally];
                let too_few = count.places < *least;
                let mut fits = places.iter().map(|place| {
                    let minimum = if too_few { 0 } else { count.min_of_others(*place) };
                    let maximum = minimum.saturating_add(*skew);
                    count.max_in(*place).saturating_add(*adds) <= maximum
                });
                !places.is_empty() && fits.all(|fits| fits)
            }
        }
    }

    /// Returns whether a location has a domain of each of these counters.
    fn has_domains(&self, tallies: &[CounterIndex], site: LocationIndex) -> bool {
        let mut domains = tallies.iter().map(|tally| self.domains_at(*tally, site));
        domains.all(|places| !places.is_empty())
    }

    /// Returns whether one check may hold at a location once all domains are known.
    pub(crate) fn may_hold(&self, check: &TopologyCheck, site: LocationIndex) -> bool {
        match check {
            TopologyCheck::Free { tally } => {
                let (count, places) = (&self.counts[*tally], self.domains_at(*tally, site));
                places.is_empty() || places.iter().any(|place| count.count_in(*place) == 0)
            }
            TopologyCheck::Near { tallies, first, .. } => {
                self.has_domains(tallies, site)
                    && (tallies.iter().all(|tally| {
                        let count = &self.counts[*tally];
                        let mut places = self.domains_at(*tally, site).iter();
                        places.any(|place| count.max_in(*place) > 0)
                    }) || (*first && tallies.iter().all(|tally| self.total_of(*tally) == 0)))
            }
            TopologyCheck::Even { tally, skew, least, adds } => {
                let count = &self.counts[*tally];
                let mut places = self.domains_at(*tally, site).iter();
                places.any(|place| {
                    let minimum = count.max_of_min(*place, *least);
                    let maximum = minimum.saturating_add(*skew);
                    count.count_in(*place).saturating_add(*adds) <= maximum
                })
            }
        }
    }

    /// Returns the possible domains of a location for a counter. The result is empty if the
    /// location has none.
    fn domains_at(&self, tally: CounterIndex, site: LocationIndex) -> &[u32] {
        self.sites.possible_domains(self.topology.key_of(tally), site)
    }

    /// Counts pods of a kind at a location.
    pub(crate) fn bind_pods(&mut self, kind: KindIndex, site: LocationIndex, pods: u32) {
        for tally in &self.topology.adds[kind] {
            self.count_pods(*tally, site, pods, true);
        }
    }

    /// Counts certain or possible pods in one counter at a location.
    pub(crate) fn count_pods(
        &mut self,
        tally: CounterIndex,
        site: LocationIndex,
        pods: u32,
        is_sure: bool,
    ) {
        let counter = &self.topology.tallies[tally];
        let place = self.sites.domain_of(counter.topology_key(), site);
        if place == NOWHERE {
            return;
        }
        let pass = match counter {
            DomainCounter::Spread { filter, .. } => {
                self.sites.counts_for(&self.topology.filters[*filter], *filter, site)
            }
            _ => Match::Yes,
        };
        let count = &mut self.counts[tally];
        match pass {
            Match::No => return,
            Match::Yes if place != UNSETTLED && is_sure => {
                count.add_pods(place, pods);
                return;
            }
            _ => {}
        }
        count.adrift = count.adrift.saturating_add(pods);
        for place in self.sites.possible_domains(counter.topology_key(), site) {
            let index = count.ensure_domain(*place);
            count.maybe[index] = count.maybe[index].saturating_add(pods);
        }
    }

    /// Includes a domain in the topology spreads by this key if a location in the domain passes
    /// their filter.
    pub(crate) fn open_possible_domain(
        &mut self,
        key: KeyIndex,
        place: u32,
        passes: impl Fn(FilterIndex) -> bool,
    ) {
        for (tally, count) in self.topology.tallies.iter().zip(&mut self.counts) {
            if let DomainCounter::Spread { key: counter_key, filter, .. } = tally
                && *counter_key == key
                && passes(*filter)
            {
                count.open_domain(place, false);
            }
        }
    }

    /// Returns the maximum count in the domain of a location.
    pub(crate) fn max_count_at(&self, tally: CounterIndex, site: LocationIndex) -> u32 {
        match self.sites.domain_of(self.topology.key_of(tally), site) {
            NOWHERE | UNSETTLED => 0,
            place => self.counts[tally].max_in(place),
        }
    }

    /// Returns whether a counter already includes the domain of a location.
    pub(crate) fn has_domain(&self, tally: CounterIndex, site: LocationIndex) -> bool {
        let place = self.sites.domain_of(self.topology.key_of(tally), site);
        let exists = self.counts[tally].exists.get(place as usize);
        exists.is_some_and(|exists| *exists)
    }

    /// Returns the domains of a counter by name, except host names, with the count and whether the
    /// topology spread includes them.
    pub(crate) fn named_domains(&self, tally: CounterIndex) -> Vec<(&str, u32, bool)> {
        let count = &self.counts[tally];
        let values = self.sites.values[self.topology.key_of(tally)].iter();
        values
            .map(|(name, domain)| {
                let exists = count.exists.get(*domain as usize).copied();
                (&name[..], count.count_in(*domain), exists.unwrap_or(false))
            })
            .collect()
    }

    /// Returns the number of domains of a counter, and the minimum count.
    pub(crate) fn count_and_min(&mut self, tally: CounterIndex) -> (u64, u64) {
        let count = &mut self.counts[tally];
        let places = count.exists.iter().filter(|exists| **exists).count();
        (places as u64, u64::from(count.min_count()))
    }

    /// Returns the total count.
    pub(crate) fn total_of(&self, tally: CounterIndex) -> u64 {
        self.counts[tally].total
    }
}
