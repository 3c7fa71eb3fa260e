//! Delays launches if nodes of a pool do not register. Usually their image, user data, subnet or
//! security group is at fault, and every further node would be wasted.
//!
//! The back-off of a pool in a zone begins when a node has not registered in time and no node
//! launched later in the zone has registered. After the wait, the engine launches one test node at
//! a time, and the other launches follow once it has registered. While no node registers in any
//! zone, the wait doubles.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::claims;
use crate::engine::context::Context;
use crate::engine::report::Report;
use crate::engine::safeguard_state::{Failing, Wait};
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, PoolName, Zone};
use crate::model::template_hash::hashes_in;
use crate::plan::Plan;
use crate::state::node_claims::NodeClaim;
use crate::state::unavailable_offerings::Untried;

/// The first wait, or the registration timeout if that is shorter, and the longest wait. Each
/// failed test node doubles the wait.
const WAIT: SignedDuration = SignedDuration::from_mins(2);
const WAIT_MAX: SignedDuration = SignedDuration::from_hours(1);
/// The engine forgets a wait this long after its end, if no launch has used it.
const MEMORY: SignedDuration = SignedDuration::from_hours(1);
/// Number of consecutive instances of a pool in a zone that the provider may end without a delay of
/// further launches.
const FAILURES_OF_PROVIDER: u32 = 4;

impl Wait {
    fn new_without_wait(now: Timestamp) -> Self {
        Self { failures: 0, since: Timestamp::MIN, until: now }
    }

    /// Counts a node that did not register. Returns whether this is a new failure: a node that was
    /// launched before the last failure belongs to that failure. The first `free` failures cause no
    /// wait.
    fn record_failure(
        &mut self,
        launched: Timestamp,
        free: u32,
        first: SignedDuration,
        now: Timestamp,
    ) -> bool {
        let counts = launched >= self.since;
        if counts {
            self.failures = self.failures.saturating_add(1);
            let doublings = self.failures.checked_sub(free + 1);
            let wait = doublings.map_or(SignedDuration::ZERO, |doublings| {
                first.saturating_mul(1 << doublings.min(16)).min(WAIT_MAX)
            });
            self.since = now;
            self.until = now.checked_add(wait).unwrap_or(now);
        }
        counts
    }
}

impl Context {
    fn pool_and_zone_of(&self, id: &ClaimId) -> Option<(PoolName, Zone, &NodeClaim)> {
        let claim = self.claim(id)?;
        let zone = claim.instance.as_ref()?.offering.zone.clone();
        Some((claim.record.pool.clone(), zone, claim))
    }
}

/// Handles the end of an instance by the provider before its node has registered. Only after
/// several failures of a pool in a zone are launches delayed: before, other offerings are tried.
pub(super) fn on_ended_by_provider(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    let Some((pool, zone, claim)) = cx.pool_and_zone_of(id) else {
        return;
    };
    let launched = claim.record.created;
    let ended = &mut cx.safeguards.registration_backoff.ended;
    let wait = ended.entry((pool, zone)).or_insert_with(|| Wait::new_without_wait(now));
    wait.record_failure(launched, FAILURES_OF_PROVIDER, WAIT, now);
    if wait.failures > FAILURES_OF_PROVIDER {
        on_not_registered(cx, id, now);
    } else {
        cx.progress_of(id).unregistered = true;
    }
}

/// Handles the failure of a node to register, in time or before the end of its instance.
pub(super) fn on_not_registered(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    let progress = cx.progress.entry(id.clone()).or_default();
    if std::mem::replace(&mut progress.unregistered, true) || !cx.is_managing() {
        return;
    }
    let Some((pool, zone, claim)) = cx.pool_and_zone_of(id) else {
        return;
    };
    let record = &claim.record;
    let hashes = (record.pool_hash.clone(), record.node_class_hash.clone());
    let launched = record.created;
    let first = cx.pool_of(claim).registration_timeout.min(WAIT);
    let instance = claim.instance.as_ref();
    let of_type = instance.map(|instance| instance.offering.instance_type.clone());
    // A failure with old settings, such as an old image, does not predict the next launch.
    if hashes_of(cx, &pool).as_ref() != Some(&hashes) {
        return;
    }
    let known = &mut cx.safeguards.registration_backoff;
    let site = (pool, zone);
    // Other nodes register, so only this node is at fault.
    if known.registered.get(&site).is_some_and(|at| *at >= launched) {
        return;
    }
    let (pool, zone) = site;
    let failing = known.failing.entry(pool.clone());
    let failing = failing.or_insert_with(|| Failing {
        hashes,
        launched,
        all: Wait::new_without_wait(now),
        zones: BTreeMap::new(),
        proven: BTreeSet::new(),
        types: BTreeMap::new(),
    });
    failing.proven.remove(&zone);
    if let Some(name) = of_type {
        *failing.types.entry(name).or_insert(0) += 1;
    }
    // The first failure does not delay launches in other zones.
    failing.all.record_failure(launched, 1, first, now);
    let wait = failing.zones.entry(zone.clone());
    let wait = wait.or_insert_with(|| Wait::new_without_wait(now));
    if !wait.record_failure(launched, 0, first, now) {
        return;
    }
    let (failures, until) = (wait.failures, wait.until);
    cx.outbox.push_report(Report::Unregistered { pool, zone, failures, until });
}

/// Handles the registration of a node.
pub(super) fn on_registered(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    let Some((pool, zone, claim)) = cx.pool_and_zone_of(id) else {
        return;
    };
    let launched = claim.record.created;
    let known = &mut cx.safeguards.registration_backoff;
    known.ended.remove(&(pool.clone(), zone.clone()));
    let youngest = known.registered.entry((pool.clone(), zone.clone()));
    let youngest = youngest.or_insert(launched);
    *youngest = (*youngest).max(launched);
    let Some(failing) = known.failing.get_mut(&pool) else {
        return;
    };
    // An old node that registers again does not prove that new nodes will register.
    if launched < failing.launched {
        return;
    }
    let is_news = failing.proven.insert(zone.clone());
    if failing.zones.remove(&zone).is_some() {
        end_launch_backoff(cx, pool, zone, now);
    } else if is_news {
        plan_again(cx, now);
    }
}

/// Reports the end of the launch back-off in a zone, and plans the pending pods again.
fn end_launch_backoff(cx: &mut Context, pool: PoolName, zone: Zone, now: Timestamp) {
    let failing = &mut cx.safeguards.registration_backoff.failing;
    failing.retain(|_, failing| !failing.zones.is_empty());
    let remaining = failing.values().map(|failing| failing.zones.len()).sum();
    cx.outbox.push_report(Report::Registers { pool, zone, left: remaining });
    plan_again(cx, now);
}

fn plan_again(cx: &mut Context, now: Timestamp) {
    cx.batcher.plan_again_at(now);
    cx.static_schedule.forget_results();
    cx.outbox.wake_at(now, "nodes of a pool register again");
}

fn hashes_of(cx: &Context, pool: &PoolName) -> Option<(String, String)> {
    let cluster = &cx.state.cluster;
    cluster.pool(pool.as_str()).map(|pool| hashes_in(cluster, pool))
}

/// Excludes zones with a launch back-off or an unfinished test from plans, and forgets old waits.
pub(super) fn exclude_failing_zones(cx: &mut Context, now: Timestamp) {
    forget_waits(cx, now);
    let waits = cx.safeguards.registration_backoff.failing.values();
    let waits = waits.flat_map(|failing| failing.zones.values().chain([&failing.all]));
    let next = waits.map(|wait| wait.until).filter(|at| *at > now).min();
    if let Some(next) = next {
        cx.outbox.wake_at(next, "launch one node of a pool whose nodes do not register");
    }
    let before = std::mem::take(&mut cx.state.holds.untried);
    exclude_untried_zones(cx, now);
    if cx.state.holds.untried != before {
        cx.batcher.plan_again_at(now);
        cx.static_schedule.forget_results();
    }
}

/// Excludes zones with a launch back-off or an unfinished test from the following plans.
pub(super) fn exclude_untried_zones(cx: &mut Context, now: Timestamp) {
    let failing = &cx.safeguards.registration_backoff.failing;
    cx.state.holds.untried = failing
        .iter()
        .map(|(pool, failing)| {
            let waits = failing.zones.iter().filter(|(_, wait)| wait.until > now);
            let until = waits.map(|(zone, wait)| (zone.clone(), wait.until)).collect();
            let proven = failing.proven.clone();
            let all_until = Some(failing.all.until).filter(|at| *at > now && proven.is_empty());
            let tried = test_node_deadline(cx, pool, &failing.proven, now);
            let untried = Untried { until, all_until, proven, tried };
            (pool.clone(), untried)
        })
        .collect();
}

/// Forgets old entries, and entries of pools and node classes that changed.
fn forget_waits(cx: &mut Context, now: Timestamp) {
    let mut expired = Vec::new();
    for (pool, failing) in &cx.safeguards.registration_backoff.failing {
        let is_same = hashes_of(cx, pool).as_ref() == Some(&failing.hashes);
        let is_tried = test_node_deadline(cx, pool, &failing.proven, now).is_some();
        let zones = failing.zones.iter().filter(|(_, wait)| {
            let until = wait.until.max(failing.all.until).checked_add(MEMORY);
            !is_same || (!is_tried && until.is_ok_and(|at| at <= now))
        });
        expired.extend(zones.map(|(zone, _)| (pool.clone(), zone.clone())));
    }
    for (pool, zone) in expired {
        if let Some(failing) = cx.safeguards.registration_backoff.failing.get_mut(&pool) {
            failing.zones.remove(&zone);
        }
        end_launch_backoff(cx, pool, zone, now);
    }
    let cluster = &cx.state.cluster;
    let known = &mut cx.safeguards.registration_backoff;
    known.registered.retain(|(pool, _), _| cluster.pool(pool.as_str()).is_some());
    known.ended.retain(|(pool, _), wait| {
        cluster.pool(pool.as_str()).is_some() && now.duration_since(wait.since) < MEMORY
    });
}

/// Returns when the registration of a test node in a zone of the pool, except these zones,
/// times out. `None` if there is no test node.
fn test_node_deadline(
    cx: &Context,
    pool: &PoolName,
    proven: &BTreeSet<Zone>,
    now: Timestamp,
) -> Option<Timestamp> {
    let claims = cx.state.ledger.claims.values();
    let starting =
        claims.filter(|claim| claim.leaving.is_none() && claim.phase <= ClaimPhase::Launched);
    let tried = starting.filter(|claim| {
        let known = claim.instance.as_ref().map(|instance| &instance.offering);
        let mut offerings = known.into_iter().chain(&claim.offerings);
        claim.record.pool == *pool && offerings.any(|offering| !proven.contains(&offering.zone))
    });
    // An overdue test node has failed, even if its termination is blocked.
    tried
        .map(|claim| claims::phase_deadline(cx, claim, cx.pool_of(claim).registration_timeout))
        .filter(|deadline| *deadline > now)
        .max()
}

/// Includes the zones in which a test node may be launched. Returns their pools.
pub(super) fn include_test_zones(cx: &mut Context) -> BTreeSet<PoolName> {
    let untried = cx.state.holds.untried.iter_mut();
    let free = untried.filter(|(_, untried)| untried.tried.is_none());
    free.map(|(pool, untried)| {
        untried.tried = Some(Timestamp::MIN);
        pool.clone()
    })
    .collect()
}

/// Keeps one launch per pool in zones with a due test node. It prefers the instance type with the
/// fewest failures, then the launch with the most pods. Pods that can run in a different zone are
/// planned there, and the other pods wait. Returns whether any launch was dropped.
pub(super) fn keep_one_test_launch(
    cx: &Context,
    plan: &mut Plan,
    pools: &BTreeSet<PoolName>,
) -> bool {
    let failing = &cx.safeguards.registration_backoff.failing;
    let mut untried: BTreeMap<PoolName, Vec<(u32, Reverse<usize>, usize)>> = BTreeMap::new();
    for (index, launch) in plan.launches.iter_mut().enumerate() {
        let Some(failing) = failing.get(&launch.pool) else {
            continue;
        };
        let proven = &failing.proven;
        if launch.offerings.iter().any(|(key, _)| proven.contains(&key.zone)) {
            launch.offerings.retain(|(key, _)| proven.contains(&key.zone));
            continue;
        }
        let of_type = launch.offerings.first().map(|(key, _)| &key.instance_type);
        let failures = of_type.and_then(|name| failing.types.get(name)).copied();
        let rank = (failures.unwrap_or(0), Reverse(launch.pods.len()), index);
        untried.entry(launch.pool.clone()).or_default().push(rank);
    }
    let mut left_out: BTreeSet<usize> = BTreeSet::new();
    for (pool, mut ranks) in untried {
        ranks.sort_unstable();
        let tried = usize::from(pools.contains(&pool));
        left_out.extend(ranks.iter().skip(tried).map(|rank| rank.2));
    }
    let mut indexes = 0..;
    plan.launches.retain(|_| indexes.next().is_some_and(|at| !left_out.contains(&at)));
    !left_out.is_empty()
}
