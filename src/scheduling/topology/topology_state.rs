//! Sites with their places and all that is counted on them, and whether one more pod may join.
//! It must not know what fits where, nor what a place costs.
//!
//! The rules are the scheduler's (kube-scheduler's PodTopologySpread and InterPodAffinity filters),
//! not Karpenter's: places are those of nodes that exist, and a pod is held against the counts at
//! the moment it is bound.

use std::collections::BTreeMap;

use crate::scheduling::problem::pod_constraints::HOST;
use crate::scheduling::topology::{DomainCounter, NodeFilter, Topology, TopologyCheck};

/// Whether a site counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    No,
    /// It depends on what a node that is still to come will be.
    Maybe,
    Yes,
}

impl Match {
    pub(crate) fn surely(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

/// No place: the site has no label of this key, or it is not known yet which.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// A place that is not settled yet: the site will have one of several labels of this key.
pub(crate) const UNSETTLED: u32 = u32::MAX - 1;

/// Where sites are: for each key its place, and which filters it passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locations {
    places: Vec<Vec<u32>>,
    passes: Vec<Vec<Match>>,
    /// The values of each key, the host's aside, by which places are numbered.
    values: Vec<BTreeMap<String, u32>>,
    /// How many places each key has.
    counts: Vec<u32>,
    /// The places of sites that are not settled, by key and site.
    unsettled: BTreeMap<(usize, usize), Vec<u32>>,
}

impl Locations {
    pub(crate) fn new(topology: &Topology) -> Self {
        Self {
            places: vec![Vec::new(); topology.keys],
            passes: vec![Vec::new(); topology.filters.len()],
            values: vec![BTreeMap::new(); topology.keys],
            counts: vec![0; topology.keys],
            unsettled: BTreeMap::new(),
        }
    }

    /// Says that a site is in one of these places by a key.
    pub(crate) fn unsettle(&mut self, key: usize, site: usize, places: Vec<u32>) {
        self.places[key][site] = UNSETTLED;
        self.unsettled.insert((key, site), places);
    }

    /// The places by a key that a site may turn out to be in; none where it is nowhere.
    fn all_at(&self, key: usize, site: usize) -> &[u32] {
        let place = &self.places[key][site];
        match *place {
            NOWHERE => &[],
            UNSETTLED => self.unsettled.get(&(key, site)).map_or(&[], |all| all),
            _ => std::slice::from_ref(place),
        }
    }

    /// The place of a value of a key.
    pub(crate) fn place(&mut self, key: usize, value: &str) -> u32 {
        if let Some(known) = self.values[key].get(value) {
            return *known;
        }
        let next = self.counts[key];
        self.values[key].insert(value.to_owned(), next);
        self.counts[key] = next + 1;
        next
    }

    /// Adds a site. `places` are those of all keys but the host's, whose own place is new where
    /// the site is a host.
    pub(crate) fn add(
        &mut self,
        is_host: bool,
        places: &[(usize, u32)],
        passes: impl Fn(usize) -> Match,
    ) -> usize {
        for own in &mut self.places {
            own.push(NOWHERE);
        }
        let at = self.places[HOST].len() - 1;
        if is_host {
            self.places[HOST][at] = self.counts[HOST];
            self.counts[HOST] += 1;
        }
        for (key, place) in places {
            self.places[*key][at] = *place;
        }
        for (filter, own) in self.passes.iter_mut().enumerate() {
            own.push(passes(filter));
        }
        at
    }

    /// The place of a site by a key.
    pub(crate) fn at(&self, key: usize, site: usize) -> u32 {
        self.places[key][site]
    }

    /// Whether a site may pass a filter.
    pub(crate) fn passes(&self, filter: usize, site: usize) -> bool {
        self.passes[filter][site] != Match::No
    }

    fn counts_for(&self, filter: &NodeFilter, ordinal: usize, site: usize) -> Match {
        if filter.keys.iter().all(|key| self.at(*key, site) != NOWHERE) {
            self.passes[ordinal][site]
        } else {
            Match::No
        }
    }
}

/// Counts of one tally.
#[derive(Clone, Debug, Default)]
struct DomainCounts {
    by_place: Vec<u32>,
    /// More that may be there, or elsewhere.
    maybe: Vec<u32>,
    /// How many are not in a place for sure.
    adrift: u32,
    /// Whether a place is one, or may come to be one: some site that counts is there.
    exists: Vec<bool>,
    /// Whether it is one for sure.
    certain: Vec<bool>,
    /// How many are for sure.
    places: u32,
    total: u64,
    /// The least of all places, and how many have it; worked out anew where that is zero.
    least: u32,
    at_least: u32,
}

impl DomainCounts {
    fn reach(&mut self, place: u32) -> usize {
        let place = place as usize;
        if self.exists.len() <= place {
            self.exists.resize(place + 1, false);
            self.certain.resize(place + 1, false);
            self.by_place.resize(place + 1, 0);
            self.maybe.resize(place + 1, 0);
        }
        place
    }

    fn open(&mut self, place: u32, is_certain: bool) {
        let place = self.reach(place);
        if is_certain && !self.certain[place] {
            self.certain[place] = true;
            self.places += 1;
        }
        if !self.exists[place] {
            self.exists[place] = true;
            self.at_least = 0;
        }
    }

    fn add(&mut self, place: u32, count: u32) {
        let at = self.reach(place);
        let before = self.by_place[at];
        self.by_place[at] = before.saturating_add(count);
        self.total += u64::from(count);
        if self.exists[at] && before == self.least && count > 0 {
            self.at_least = self.at_least.saturating_sub(1);
        }
    }

    /// How many there are at most.
    fn at_most(&self, place: u32) -> u32 {
        let maybe = self.maybe.get(place as usize).copied().unwrap_or(0);
        self.of(place).saturating_add(maybe)
    }

    fn of(&self, place: u32) -> u32 {
        self.by_place.get(place as usize).copied().unwrap_or(0)
    }

    /// The least of all places if all that may be in one of them are there.
    fn least_beside(&mut self, place: u32) -> u32 {
        if self.adrift == 0 {
            return self.least();
        }
        let own = self.by_place.iter().zip(&self.exists).enumerate();
        let others = own.filter(|(at, (_, exists))| **exists && *at != place as usize);
        let others = others.map(|(_, (count, _))| *count).min();
        others.unwrap_or(u32::MAX).min(self.at_most(place))
    }

    /// The least of all places at most, one more pod being in this: only those that are places for
    /// sure count, and all that may be in them are. Where there may be too few, it is none.
    fn least_at_most(&self, place: u32, least: u32) -> u32 {
        let most = self.exists.iter().filter(|exists| **exists).count();
        if most < least as usize {
            return 0;
        }
        let others = self.certain.iter().zip(0u32..);
        let others = others.filter(|(certain, at)| **certain && *at != place);
        let others = others.map(|(_, at)| self.at_most(at)).min();
        others.unwrap_or(u32::MAX).min(self.of(place))
    }

    fn least(&mut self) -> u32 {
        if self.at_least == 0 {
            let own = self.by_place.iter().zip(&self.exists);
            let own = own.filter(|(_, exists)| **exists).map(|(count, _)| *count);
            self.least = own.clone().min().unwrap_or(0);
            self.at_least = u32::try_from(own.filter(|it| *it == self.least).count()).unwrap_or(1);
        }
        self.least
    }
}

/// Sites with all that is counted on them.
#[derive(Clone, Debug)]
pub(crate) struct TopologyState<'t> {
    pub(crate) topology: &'t Topology,
    pub(crate) sites: Locations,
    /// Whether pods whose place matters go to sites that are not settled: only if nothing better is
    /// to be had, since they are in the way in every place that such a site may turn out to be in.
    pub(crate) takes_unsettled: bool,
    counts: Vec<DomainCounts>,
}

impl<'t> TopologyState<'t> {
    /// A board without a site.
    pub(crate) fn new(topology: &'t Topology) -> Self {
        Self {
            topology,
            sites: Locations::new(topology),
            takes_unsettled: false,
            counts: vec![DomainCounts::default(); topology.tallies.len()],
        }
    }

    /// Makes the places of a site exist, for spreads that count it.
    pub(crate) fn open(&mut self, site: usize) {
        self.open_places(site, true);
    }

    fn open_places(&mut self, site: usize, is_certain: bool) {
        for (tally, count) in self.topology.tallies.iter().zip(&mut self.counts) {
            let DomainCounter::Spread { key, filter, .. } = tally else {
                continue;
            };
            let place = self.sites.at(*key, site);
            let own = &self.topology.filters[*filter];
            let pass = self.sites.counts_for(own, *filter, site);
            if place < UNSETTLED && pass != Match::No {
                count.open(place, is_certain && pass == Match::Yes);
            }
        }
    }

    /// Lets the place of a site be one for a tally: there may be a node. A node that lacks one of
    /// the labels by which the same pods are spread is no place of any of them. Source:
    /// kube-scheduler, PodTopologySpread.
    pub(crate) fn open_for(&mut self, tally: usize, site: usize) {
        let own = &self.topology.tallies[tally];
        let has = |key: &usize| self.sites.at(*key, site) != NOWHERE;
        let has_all = match own {
            DomainCounter::Spread { filter, .. } => {
                let mut keys = self.topology.filters[*filter].keys.iter();
                keys.all(|key| *key == HOST || has(key))
            }
            _ => true,
        };
        match self.sites.at(own.key(), site) {
            place if place < UNSETTLED && has_all => self.counts[tally].open(place, false),
            _ => {}
        }
    }

    /// Whether a pod of a kind may be bound on a site now. Source: kube-scheduler, the filters
    /// PodTopologySpread and InterPodAffinity.
    pub(crate) fn allows(&mut self, kind: usize, site: usize) -> bool {
        let topology = self.topology;
        let checks = &topology.checks[kind];
        let unsettled = |key: usize| self.sites.at(key, site) == UNSETTLED;
        let waits = |check: &TopologyCheck| match check {
            TopologyCheck::Free { tally } | TopologyCheck::Even { tally, .. } => {
                unsettled(topology.tallies[*tally].key())
            }
            TopologyCheck::Near { .. } => false,
        };
        if !self.takes_unsettled && checks.iter().any(waits) {
            return false;
        }
        checks.iter().all(|check| self.holds(check, site))
    }

    /// Whether one check holds on a site now, wherever it turns out to be.
    pub(crate) fn holds(&mut self, check: &TopologyCheck, site: usize) -> bool {
        let (topology, sites) = (self.topology, &self.sites);
        let places = |tally: usize| sites.all_at(topology.tallies[tally].key(), site);
        match check {
            TopologyCheck::Free { tally } => {
                let count = &self.counts[*tally];
                places(*tally)
                    .iter()
                    .all(|place| count.at_most(*place) == 0)
            }
            TopologyCheck::Near { tallies, own, .. } => {
                let known = tallies.iter().all(|tally| !places(*tally).is_empty());
                let near = |tally: &usize| {
                    let count = &self.counts[*tally];
                    places(*tally).iter().all(|place| count.of(*place) > 0)
                };
                let none = |tally: &usize| {
                    let count = &self.counts[*tally];
                    count.total == 0 && count.adrift == 0
                };
                let nobody = || tallies.iter().all(none);
                known && (tallies.iter().all(near) || (*own && nobody()))
            }
            TopologyCheck::Even {
                tally,
                skew,
                least,
                own,
            } => {
                let count = &mut self.counts[*tally];
                let few = count.places < *least;
                let places = places(*tally);
                let mut fits = places.iter().map(|place| {
                    let low = if few { 0 } else { count.least_beside(*place) };
                    let most = low.saturating_add(*skew);
                    count.at_most(*place).saturating_add(*own) <= most
                });
                !places.is_empty() && fits.all(|fits| fits)
            }
        }
    }

    /// Whether one check may come to hold on a site, once it is known where everybody is.
    pub(crate) fn may_hold(&self, check: &TopologyCheck, site: usize) -> bool {
        let places = |tally: usize| {
            let key = self.topology.tallies[tally].key();
            self.sites.all_at(key, site)
        };
        match check {
            TopologyCheck::Free { tally } => {
                let (count, places) = (&self.counts[*tally], places(*tally));
                places.is_empty() || places.iter().any(|place| count.of(*place) == 0)
            }
            TopologyCheck::Near { tallies, own, .. } => {
                let known = tallies.iter().all(|tally| !places(*tally).is_empty());
                let near = |tally: &usize| {
                    let count = &self.counts[*tally];
                    places(*tally).iter().any(|place| count.at_most(*place) > 0)
                };
                let nobody = || tallies.iter().all(|tally| self.counts[*tally].total == 0);
                known && (tallies.iter().all(near) || (*own && nobody()))
            }
            TopologyCheck::Even {
                tally,
                skew,
                least,
                own,
            } => {
                let count = &self.counts[*tally];
                let mut places = places(*tally).iter();
                places.any(|place| {
                    let low = count.least_at_most(*place, *least);
                    let most = low.saturating_add(*skew);
                    count.of(*place).saturating_add(*own) <= most
                })
            }
        }
    }

    /// Counts pods of a kind on a site.
    pub(crate) fn bind(&mut self, kind: usize, site: usize, pods: u32) {
        for tally in &self.topology.adds[kind] {
            self.count(*tally, site, pods);
        }
    }

    /// Counts pods in one tally on a site.
    pub(crate) fn count(&mut self, tally: usize, site: usize, pods: u32) {
        self.tell((tally, site), pods, true);
    }

    /// Counts the pod of a daemon in one tally on a site, where it is sure to be or may be.
    pub(crate) fn count_daemon(&mut self, tally: usize, site: usize, is_sure: bool) {
        self.tell((tally, site), 1, is_sure);
    }

    fn tell(&mut self, (tally, site): (usize, usize), pods: u32, is_sure: bool) {
        let own = &self.topology.tallies[tally];
        let place = self.sites.at(own.key(), site);
        if place == NOWHERE {
            return;
        }
        let pass = match own {
            DomainCounter::Spread { filter, .. } => {
                self.sites
                    .counts_for(&self.topology.filters[*filter], *filter, site)
            }
            _ => Match::Yes,
        };
        let count = &mut self.counts[tally];
        match pass {
            Match::No => return,
            Match::Yes if place != UNSETTLED && is_sure => {
                count.add(place, pods);
                return;
            }
            _ => {}
        }
        count.adrift = count.adrift.saturating_add(pods);
        for place in self.sites.all_at(own.key(), site) {
            let at = count.reach(*place);
            count.maybe[at] = count.maybe[at].saturating_add(pods);
        }
    }

    /// Lets a place be one for every spread by a key whose filter a site there passes.
    pub(crate) fn open_maybe(&mut self, key: usize, place: u32, passes: impl Fn(usize) -> bool) {
        for (tally, count) in self.topology.tallies.iter().zip(&mut self.counts) {
            if let DomainCounter::Spread {
                key: own, filter, ..
            } = tally
                && *own == key
                && passes(*filter)
            {
                count.open(place, false);
            }
        }
    }

    /// How many of a tally are in the place of a site, at most.
    pub(crate) fn there(&self, tally: usize, site: usize) -> u32 {
        match self.sites.at(self.topology.tallies[tally].key(), site) {
            NOWHERE | UNSETTLED => 0,
            place => self.counts[tally].at_most(place),
        }
    }

    /// Whether the place of a site is one that a tally counts already.
    pub(crate) fn has_place(&self, tally: usize, site: usize) -> bool {
        let place = self.sites.at(self.topology.tallies[tally].key(), site);
        let exists = self.counts[tally].exists.get(place as usize);
        exists.is_some_and(|exists| *exists)
    }

    /// The places by the key of a tally, not the host's, by name: how many of the tally are there,
    /// and whether the place counts.
    pub(crate) fn places(&self, tally: usize) -> Vec<(&str, u32, bool)> {
        let count = &self.counts[tally];
        let values = self.sites.values[self.topology.tallies[tally].key()].iter();
        let mut places = Vec::with_capacity(values.len());
        for (name, at) in values {
            let exists = count.exists.get(*at as usize).copied();
            places.push((&name[..], count.of(*at), exists.unwrap_or(false)));
        }
        places
    }

    /// How many places a tally has that count, and how many of it are in the emptiest.
    pub(crate) fn extent(&mut self, tally: usize) -> (u64, u64) {
        let count = &mut self.counts[tally];
        let places = count.exists.iter().filter(|exists| **exists).count();
        (places as u64, u64::from(count.least()))
    }

    /// How many of a tally there are anywhere.
    pub(crate) fn total(&self, tally: usize) -> u64 {
        self.counts[tally].total
    }
}
