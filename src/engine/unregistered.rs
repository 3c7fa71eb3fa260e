//! Makes launches wait where nodes of a pool do not register: their image, user data, subnet or
//! security group is at fault as a rule, and every further node would be bought for nothing.
//! It must not know how a node registers, nor how launches are planned.
//!
//! Once a node has not registered in time, and none of its pool and zone has that was launched no
//! earlier, nothing is launched there for a while. In the zones where the pool's nodes have not
//! registered since, one node is tried at a time, and the others follow once it has registered.
//! While none registers in any zone, the wait before the next one grows.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::report::Report;
use crate::model::claim::Phase;
use crate::model::hash::hashes_in;
use crate::model::id::{ClaimId, PoolName, Zone};
use crate::plan::Plan;
use crate::state::holds::Untried;
use crate::state::ledger::Claim;

/// The first wait, and the longest; each failure of the node that is tried doubles it.
const WAIT: SignedDuration = SignedDuration::from_mins(2);
const WAIT_MAX: SignedDuration = SignedDuration::from_hours(1);
/// Where nobody needed a node for so long after the wait, nothing is known any more.
const MEMORY: SignedDuration = SignedDuration::from_hours(1);

/// What is known of pools whose nodes do not register.
#[derive(Clone, Debug, Default)]
pub(super) struct Unregistered {
    failing: BTreeMap<PoolName, Failing>,
    /// When the youngest node that has registered was launched, by pool and zone.
    registered: BTreeMap<(PoolName, Zone), Timestamp>,
}

/// A pool of which nodes do not register.
#[derive(Clone, Debug)]
struct Failing {
    /// The hash of the node class: with another one all may be well.
    node_class: String,
    /// The wait before a node is tried in any zone, for as long as none has registered.
    all: Wait,
    /// When that last grew: nodes that were launched together count once, whatever their zones.
    since: Timestamp,
    zones: BTreeMap<Zone, Wait>,
    /// Where a node has registered since.
    proven: BTreeSet<Zone>,
}

/// A wait before the next node is tried.
#[derive(Clone, Copy, Debug)]
struct Wait {
    /// How often nodes were found not to register.
    failures: u32,
    /// When a node is tried again.
    until: Timestamp,
}

impl Wait {
    /// Nodes were found not to register once more. The first so many failures wait for nothing.
    fn grow(&mut self, free: u32, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        let doublings = self.failures.checked_sub(free + 1);
        let wait = doublings.map_or(SignedDuration::ZERO, |own| {
            WAIT.saturating_mul(1 << own.min(16)).min(WAIT_MAX)
        });
        self.until = now.checked_add(wait).unwrap_or(now);
    }
}

impl Engine {
    /// A node has not registered in time.
    pub(super) fn note_unregistered(&mut self, id: &ClaimId, now: Timestamp) {
        let work = self.works.entry(id.clone()).or_default();
        if std::mem::replace(&mut work.unregistered, true) || !self.manages() {
            return;
        }
        let Some((pool, zone, claim)) = self.site_of(id) else {
            return;
        };
        let (node_class, launched) = (claim.record.node_class_hash.clone(), claim.record.created);
        let known = &mut self.unregistered;
        let site = (pool, zone);
        // Others do: this one alone was at fault.
        if known
            .registered
            .get(&site)
            .is_some_and(|at| *at >= launched)
        {
            return;
        }
        let (pool, zone) = site;
        let failing = known.failing.entry(pool.clone());
        let none = Wait {
            failures: 0,
            until: now,
        };
        let failing = failing.or_insert_with(|| Failing {
            node_class,
            all: none,
            since: now,
            zones: BTreeMap::new(),
            proven: BTreeSet::new(),
        });
        failing.proven.remove(&zone);
        let is_first = failing.zones.is_empty();
        let own = failing.zones.entry(zone.clone()).or_insert(none);
        // Those that were launched together count once.
        if own.until > now {
            return;
        }
        own.grow(0, now);
        // Another zone is tried at once.
        if is_first || launched >= failing.since {
            failing.since = now;
            failing.all.grow(1, now);
        }
        let Wait { failures, until } = *own;
        self.report(Report::Unregistered {
            pool,
            zone,
            failures,
            until,
        });
    }

    /// A node has registered.
    pub(super) fn note_registered(&mut self, id: &ClaimId, now: Timestamp) {
        let Some((pool, zone, claim)) = self.site_of(id) else {
            return;
        };
        let launched = claim.record.created;
        let known = &mut self.unregistered;
        let own = known.registered.entry((pool.clone(), zone.clone()));
        let own = own.or_insert(launched);
        *own = (*own).max(launched);
        let Some(failing) = known.failing.get_mut(&pool) else {
            return;
        };
        failing.proven.insert(zone.clone());
        failing.zones.remove(&zone);
        self.end_wait(pool, zone, now);
    }

    /// Launches into a zone wait no longer: those that do are planned.
    fn end_wait(&mut self, pool: PoolName, zone: Zone, now: Timestamp) {
        let failing = &mut self.unregistered.failing;
        failing.retain(|_, own| !own.zones.is_empty());
        let left = failing.values().map(|own| own.zones.len()).sum();
        self.report(Report::Registers { pool, zone, left });
        self.batch.try_again(now);
        self.numbers.forget();
        self.wake_at(now, "nodes register again");
    }

    fn site_of(&self, id: &ClaimId) -> Option<(PoolName, Zone, &Claim)> {
        let claim = self.state.ledger.claims.get(id)?;
        let zone = claim.instance.as_ref()?.offering.zone.clone();
        Some((claim.record.pool.clone(), zone, claim))
    }

    /// Keeps plans from zones where nodes of a pool do not register, and from those where that is
    /// not known.
    pub(super) fn shut_zones(&mut self, now: Timestamp) {
        self.forget_waits(now);
        let waits = self.unregistered.failing.values();
        let waits = waits.flat_map(|own| own.zones.values().chain([&own.all]));
        let next = waits.map(|own| own.until).filter(|at| *at > now).min();
        if let Some(next) = next {
            self.wake_at(next, "a node is tried where none registers");
        }
        let before = std::mem::take(&mut self.state.holds.untried);
        self.close_untried(now);
        if self.state.holds.untried != before {
            self.batch.try_again(now);
            self.numbers.forget();
        }
    }

    /// Has no plan use those zones from here on.
    pub(super) fn close_untried(&mut self, now: Timestamp) {
        let failing = &self.unregistered.failing;
        let untried = |(pool, own): (&PoolName, &Failing)| {
            let waits = own.zones.iter().filter(|(_, own)| own.until > now);
            let until = waits.map(|(zone, own)| (zone.clone(), own.until)).collect();
            let proven = own.proven.clone();
            let all_until = Some(own.all.until).filter(|at| *at > now && proven.is_empty());
            let tried = self.is_tried(pool, &own.proven);
            let untried = Untried {
                until,
                all_until,
                proven,
                tried,
            };
            (pool.clone(), untried)
        };
        self.state.holds.untried = failing.iter().map(untried).collect();
    }

    /// Forgets what is long ago, or of a pool or node class that is another by now.
    fn forget_waits(&mut self, now: Timestamp) {
        let mut over = Vec::new();
        for (pool, own) in &self.unregistered.failing {
            let cluster = &self.state.cluster;
            let hash = cluster
                .pool(pool.as_str())
                .map(|own| hashes_in(cluster, own).1);
            let is_same = hash.as_ref() == Some(&own.node_class);
            let is_long_ago = |own: &Wait| own.until.checked_add(MEMORY).is_ok_and(|at| at <= now);
            let zones = own.zones.iter();
            let zones = zones.filter(|(_, wait)| !is_same || is_long_ago(wait));
            over.extend(zones.map(|(zone, _)| (pool.clone(), zone.clone())));
        }
        for (pool, zone) in over {
            if let Some(own) = self.unregistered.failing.get_mut(&pool) {
                own.zones.remove(&zone);
            }
            self.end_wait(pool, zone, now);
        }
        let cluster = &self.state.cluster;
        let registered = &mut self.unregistered.registered;
        registered.retain(|(pool, _), _| cluster.pool(pool.as_str()).is_some());
    }

    /// Until when it is known at the latest whether a node registers that is on its way to a zone
    /// of a pool other than these; none where none is.
    fn is_tried(&self, pool: &PoolName, proven: &BTreeSet<Zone>) -> Option<Timestamp> {
        let claims = self.state.ledger.claims.values();
        let starting = claims.filter(|own| own.leaving.is_none() && own.phase <= Phase::Launched);
        let tried = starting.filter(|own| {
            let known = own.instance.as_ref().map(|own| &own.offering);
            let mut offerings = known.into_iter().chain(&own.offerings);
            own.record.pool == *pool && offerings.any(|own| !proven.contains(&own.zone))
        });
        let by = |own: &Claim| self.overdue(own, self.pool_of(own).registration_timeout);
        tried.map(by).max()
    }

    /// Lets a plan have nodes where one may be tried. Returns the pools.
    pub(super) fn open_untried(&mut self) -> BTreeSet<PoolName> {
        let untried = self.state.holds.untried.iter_mut();
        let free = untried.filter(|(_, own)| own.tried.is_none());
        let free = free.map(|(pool, own)| {
            own.tried = Some(Timestamp::MIN);
            pool.clone()
        });
        free.collect()
    }

    /// Leaves one launch for each of these pools in zones where a node is to be tried. Pods that
    /// may go to another zone do, and the others wait. Returns whether any launch was left out.
    pub(super) fn try_one_each(&self, plan: &mut Plan, mut pools: BTreeSet<PoolName>) -> bool {
        let before = plan.launches.len();
        plan.launches.retain_mut(|own| {
            let Some(failing) = self.unregistered.failing.get(&own.pool) else {
                return true;
            };
            let is_proven = |zone: &Zone| failing.proven.contains(zone);
            if own.offerings.iter().any(|(key, _)| is_proven(&key.zone)) {
                own.offerings.retain(|(key, _)| is_proven(&key.zone));
                return true;
            }
            pools.remove(&own.pool)
        });
        plan.launches.len() < before
    }
}
