//! Draws a scenario from a seed: workloads over two days, pools, shortages, and configuration
//! changes. At the end, nothing changes anymore.

// Scheduled sweeps.
pub mod sweeps;

use std::sync::Arc;

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::catalog::Catalog;
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::labels::{ARCH, CAPACITY_TYPE, ZONE};
use crate::model::pool::{self, BudgetNodes, Consolidation, OnBlocked, Pool, Rate, Reason, Safety};
use crate::model::quantity::Resources;
use crate::model::requirement::{Operator, Requirement};
use crate::model::taint::{Effect, Taint, Toleration, TolerationOperator};
use crate::model::window::Window;
use crate::sim::Setup;
use crate::sim::event_queue::time_after;
use crate::sim::rng::{draw_chance, duration_between, random_stream};
use crate::sim::scenario::{Scenario, Shortage};
use crate::sim::workload::{ScaleStep, SimPdb, Want, Workload, WorkloadKind};

/// 2026-03-27, a Friday, at midnight UTC. In some time zones, daylight saving time starts within
/// two days.
const START: Timestamp = Timestamp::constant(1_774_569_600, 0);

/// Duration of workload changes and faults.
const LASTS: SignedDuration = SignedDuration::from_hours(48);

/// Time after the last change until the state must be stable. Budgets disrupt nodes one by one, and
/// blocked nodes are tried again an hour later.
const SETTLE: SignedDuration = SignedDuration::from_hours(4);

/// Number of delays added to `SETTLE` if pods or pools delay disruption. A moved pod restarts its
/// delay.
const ROUNDS: i32 = 4;

/// Duration at the end without any command.
const CALM: SignedDuration = SignedDuration::from_hours(24);

const FAMILY: &str = "karpenter.k8s.aws/instance-family";
const CPUS: &str = "karpenter.k8s.aws/instance-cpu";
const FAMILIES: [&str; 6] = ["c6i", "m6i", "r6i", "c6g", "m6g", "r6g"];
const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];
const ZONES_OF_TIME: [&str; 4] = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"];
const CPU_COUNTS: [&str; 3] = ["2", "4", "8"];
const FIXED_TYPE: &str = "m6i.4xlarge";
const MIB: i64 = 1 << 20;

/// Approximate capacity of a node in a random scenario: thousandths of a core, and memory.
const NODE_CPU: i64 = 6000;
const NODE_MIB: i64 = 24_000;

/// Returns the types of a catalog that random scenarios use. All other types would have no effect
/// and slow down every plan.
pub fn types_of(catalog: &Catalog) -> Arc<Catalog> {
    let mut pool = Pool::new("");
    require_label(&mut pool, FAMILY, &FAMILIES);
    require_label(&mut pool, CPUS, &CPU_COUNTS);
    Arc::new(Catalog::new(
        catalog
            .types()
            .filter(|shape| {
                shape.name.as_str() == FIXED_TYPE
                    || pool.requirements.iter().all(|(key, wanted)| {
                        let values = shape.requirements.get(key).and_then(Requirement::values);
                        values.is_some_and(|values| {
                            values.iter().any(|value| wanted.allows_value(value))
                        })
                    })
            })
            .cloned(),
    ))
}

/// Draws the scenario of a seed with these types. Most scenarios are small, because small scenarios
/// find as many bugs in less time. One in 30 has 20 nodes or more, and one in 1,000 has up to 200.
pub fn draw_scenario(seed: u64, types: &Arc<Catalog>) -> Setup {
    let mut rng = random_stream(seed, "drawn/size");
    let nodes = match rng.u32(0..1000) {
        0 => rng.i64(100..=200),
        1..33 => rng.i64(20..=60),
        _ => rng.i64(2..=15),
    };
    let pools = draw_pools(&mut random_stream(seed, "drawn/pools"), nodes);
    let mut cluster = Cluster {
        installation: "simulation".to_owned(),
        name: "drawn".into(),
        mode: ManagementMode::Manage,
        pools,
        ..Cluster::default()
    };
    for pool in &mut cluster.pools {
        let mut rng = random_stream(seed, &format!("drawn/rules/{}", pool.name));
        draw_rules(&mut rng, pool);
    }
    let workloads = draw_workloads(&mut random_stream(seed, "drawn/workloads"), &cluster, nodes);
    let pod_delays =
        workloads.iter().filter_map(|workload| workload.do_not_disrupt.as_ref()?.parse().ok());
    let pools = cluster.pools.iter();
    let pool_delays = pools.map(|pool| pool.disruption.min_age.max(pool.disruption.unneeded_for));
    let longest = pod_delays.chain(pool_delays).max().unwrap_or_default();
    let scenario = Scenario {
        title: format!("a fleet of about {nodes} nodes"),
        start: START,
        end: time_after(START, LASTS),
        settle: SETTLE + longest * ROUNDS,
        calm: CALM,
        boot: SignedDuration::from_secs(rng.i64(20..=90)),
        fixed_type: FIXED_TYPE.into(),
        workloads,
        shortages: draw_shortages(&mut random_stream(seed, "drawn/shortages")),
        batches: random_stream(seed, "drawn/batches").bool(),
        ..Scenario::default()
    };
    let mut reloads = Vec::new();
    let mut last_config = cluster.clone();
    let mut rng = random_stream(seed, "drawn/reloads");
    let mut times: Vec<Timestamp> = (0..rng.u32(0..3)).map(|_| draw_time(&mut rng)).collect();
    times.sort_unstable();
    for at in times {
        change_pool(&mut rng, &mut last_config);
        reloads.push((at, Arc::new(last_config.clone())));
    }
    end_disruptions(&mut last_config);
    reloads.push((scenario.end, Arc::new(last_config)));
    Setup {
        scenario: Arc::new(scenario),
        config: Arc::new(cluster),
        catalog: Arc::clone(types),
        reloads,
        sweeps: Vec::new(),
        stops: Vec::new(),
    }
}

/// Draws a time in the two days.
fn draw_time(rng: &mut Rng) -> Timestamp {
    time_after(START, duration_between(rng, SignedDuration::ZERO, LASTS))
}

/// Draws one element.
fn draw_one<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(0..of.len())].clone()
}

/// Draws `count` different elements.
fn draw_some<'a>(rng: &mut Rng, of: &[&'a str], count: usize) -> Vec<&'a str> {
    let mut elements = of.to_vec();
    rng.shuffle(&mut elements);
    elements.truncate(count);
    elements
}

fn draw_pools(rng: &mut Rng, nodes: i64) -> Vec<Pool> {
    let mut pools = Vec::new();
    for number in 0..rng.usize(1..=3) {
        // The first pool accepts all pods that the other pools reject, in every zone. Otherwise,
        // topology spread over a zone that only another pool uses could block pods.
        let mut pool = draw_pool(rng, &format!("pool-{number}"), number == 0);
        let families = if number == 0 {
            FAMILIES.to_vec()
        } else {
            let count = rng.usize(2..=4);
            draw_some(rng, &FAMILIES, count)
        };
        let capacity_types: &[&str] = match rng.u32(0..3) {
            1 if number > 0 => &["spot"],
            2 if number > 0 => &["on-demand"],
            _ => &["spot", "on-demand"],
        };
        require_label(&mut pool, FAMILY, &families);
        require_label(&mut pool, CAPACITY_TYPE, capacity_types);
        pool.weight = draw_one(rng, &[0, 0, 10, 50]);
        if draw_chance(rng, 300) {
            pool.limits.nodes = Some(u32::try_from(nodes * 3 + 10).unwrap_or(u32::MAX));
        }
        pools.push(pool);
    }
    if draw_chance(rng, 400) {
        let mut dedicated = draw_pool(rng, "apart", false);
        require_label(&mut dedicated, FAMILY, &FAMILIES);
        require_label(&mut dedicated, CAPACITY_TYPE, &["spot", "on-demand"]);
        dedicated.labels = [("team".to_owned(), "apart".to_owned())].into();
        dedicated.taints = vec![Taint::new("dedicated", Effect::NoSchedule)];
        pools.push(dedicated);
    }
    if draw_chance(rng, 200) {
        let mut fixed = draw_pool(rng, "static", false);
        require_label(&mut fixed, FAMILY, &["m6i"]);
        require_label(&mut fixed, CAPACITY_TYPE, &["on-demand"]);
        fixed.replicas = Some(rng.u32(1..=4));
        pools.push(fixed);
    }
    pools.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| a.name.cmp(&b.name)));
    pools
}

/// Draws the common settings of a pool.
fn draw_pool(rng: &mut Rng, name: &str, is_everywhere: bool) -> Pool {
    let secs = SignedDuration::from_secs;
    let hours = SignedDuration::from_hours;
    let mut pool = Pool::new(name);
    require_label(&mut pool, CPUS, &CPU_COUNTS);
    let count = if is_everywhere { 3 } else { rng.usize(2..=3) };
    require_label(&mut pool, ZONE, &draw_some(rng, &ZONES, count));
    pool.expire_after = draw_chance(rng, 600).then(|| hours(rng.i64(3..=24)));
    let grace = [None, None, Some(secs(600)), Some(hours(1))];
    pool.termination_grace_period = draw_one(rng, &grace);
    let policies =
        [Consolidation::Empty, Consolidation::EmptyOrUnderutilized, Consolidation::Balanced];
    pool.disruption.consolidation = draw_one(rng, &policies);
    let after = [Some(secs(0)), Some(secs(30)), Some(secs(300)), Some(secs(1800)), None];
    pool.disruption.consolidate_after = draw_one(rng, &after);
    pool.disruption.budgets = draw_budgets(rng);
    if draw_chance(rng, 300) {
        pool.startup_taints = vec![Taint::new("example.com/agent", Effect::NoSchedule)];
    }
    pool
}

/// Draws disruption settings that only some pools have.
fn draw_rules(rng: &mut Rng, pool: &mut Pool) {
    let hours = SignedDuration::from_hours;
    let mins = SignedDuration::from_mins;
    if draw_chance(rng, 100) {
        let text = draw_one(rng, &["2/h", "5/h", "40/d"]);
        pool.disruption.budgets.push(pool::Budget {
            rate: Rate::parse(text),
            ..pool::Budget::new(BudgetNodes::Percent(100))
        });
    }
    if draw_chance(rng, 100) {
        // Without a grace period, such a node could drain forever.
        pool.termination_grace_period.get_or_insert(hours(1));
        pool.expire_hard_after = Some(hours(rng.i64(6..=40)));
    }
    if draw_chance(rng, 150) {
        pool.disruption.on_blocked = draw_one(rng, &[OnBlocked::Abort, OnBlocked::Force]);
        pool.disruption.drain_timeout = mins(rng.i64(10..=90));
    }
    if draw_chance(rng, 100) {
        pool.disruption.min_age = mins(rng.i64(5..=120));
    }
    if draw_chance(rng, 100) {
        pool.disruption.unneeded_for = mins(rng.i64(1..=30));
        pool.disruption.utilization_threshold = Some(rng.u32(30..=80));
    }
    if draw_chance(rng, 50) {
        pool.disruption.safety = Safety::Conservative;
    }
}

fn require_label(pool: &mut Pool, key: &str, values: &[&str]) {
    let wanted = Requirement::is_in(values.iter().copied());
    pool.requirements.add(key, wanted);
}

fn draw_budgets(rng: &mut Rng) -> Vec<pool::Budget> {
    let mut budgets = vec![pool::Budget::new(draw_allowance(rng))];
    if draw_chance(rng, 300) {
        let reason = draw_one(rng, &Reason::BUDGETED);
        budgets
            .push(pool::Budget { reasons: vec![reason], ..pool::Budget::new(draw_allowance(rng)) });
    }
    if draw_chance(rng, 400) {
        let hour = rng.u32(0..24);
        let duration = SignedDuration::from_hours(rng.i64(1..=20));
        let zone = draw_one(rng, &ZONES_OF_TIME);
        let window = Window::new(&format!("30 {hour} * * *"), duration, zone);
        let counts = [BudgetNodes::Nodes(0), BudgetNodes::Nodes(1), BudgetNodes::Percent(50)];
        budgets.extend(window.ok().map(|window| pool::Budget {
            during: Some(window),
            ..pool::Budget::new(draw_one(rng, &counts))
        }));
    }
    budgets
}

fn draw_allowance(rng: &mut Rng) -> BudgetNodes {
    if rng.bool() {
        BudgetNodes::Percent(draw_one(rng, &[5, 10, 20, 50, 100]))
    } else {
        BudgetNodes::Nodes(rng.u32(1..=4))
    }
}

fn draw_workloads(rng: &mut Rng, cluster: &Cluster, nodes: i64) -> Vec<Workload> {
    let mut workloads = Vec::new();
    for name in ["agent", "shipper"].iter().take(rng.usize(1..=2)) {
        let mut daemon = Workload::new(name, WorkloadKind::DaemonSet);
        daemon.requests = cpu_and_memory(100, 128);
        daemon.tolerations = vec![exists_toleration("")];
        workloads.push(daemon);
    }
    let count = rng.i64(2..=8) + nodes / 20;
    let has_apart_pool = cluster.pool("apart").is_some();
    for number in 0..count {
        // Total requests that fill about `nodes` nodes.
        let share = (NODE_CPU * nodes / count).max(500);
        let name = format!("w{number}");
        workloads.push(draw_workload(rng, &name, share, has_apart_pool));
    }
    workloads
}

fn draw_workload(rng: &mut Rng, name: &str, share: i64, has_apart_pool: bool) -> Workload {
    let owns = match rng.u32(0..20) {
        0..3 => WorkloadKind::Job { run_for: SignedDuration::from_mins(rng.i64(3..=90)) },
        3..7 => WorkloadKind::StatefulSet,
        _ => WorkloadKind::Deployment,
    };
    let mut workload = Workload::new(name, owns);
    let cpu = draw_one(rng, &[150i64, 250, 500, 500, 1000, 1000, 2000, 3000]);
    let mib = draw_one(rng, &[128i64, 512, 1024, 3000, 6000]);
    workload.requests = cpu_and_memory(cpu, mib);
    let max_replicas = (share / cpu).min(share * NODE_MIB / NODE_CPU / mib);
    let max_replicas = u32::try_from(max_replicas.clamp(1, 150)).unwrap_or(1);
    draw_steps(rng, &mut workload, max_replicas);
    workload.priority = draw_one(rng, &[0, 0, 0, 100, 1000]);
    workload.grace = SignedDuration::from_secs(draw_one(rng, &[1, 5, 30, 90]));
    if !matches!(owns, WorkloadKind::Job { .. }) {
        workload.budget = draw_pdb(rng, max_replicas);
        if draw_chance(rng, 250) {
            workload.max_skew = Some(rng.u32(1..=2));
        }
    }
    if draw_chance(rng, 120) {
        let lasts = draw_one(rng, &["true", "true", "20m", "3h", "no such thing"]);
        workload.do_not_disrupt = Some(lasts.to_owned());
    }
    match rng.u32(0..10) {
        0 if has_apart_pool => {
            let team = ("team".to_owned(), "apart".to_owned());
            workload.node_selector.extend([team]);
            workload.tolerations = vec![exists_toleration("dedicated")];
        }
        1 => workload.wants.push(wants_label(ARCH, "arm64")),
        2 => workload.wants.push(wants_label(CAPACITY_TYPE, "on-demand")),
        _ => {}
    }
    workload
}

fn draw_steps(rng: &mut Rng, workload: &mut Workload, max: u32) {
    let job = matches!(workload.owns, WorkloadKind::Job { .. });
    let mut times: Vec<Timestamp> = (0..rng.u32(0..=8)).map(|_| draw_time(rng)).collect();
    times.sort_unstable();
    times.insert(0, START);
    workload.steps = times
        .into_iter()
        .map(|at| ScaleStep { at, replicas: rng.u32(if job { 0..=max } else { max / 4..=max }) })
        .collect();
    if workload.owns == WorkloadKind::Deployment {
        let mut rollouts: Vec<Timestamp> = (0..rng.u32(0..3)).map(|_| draw_time(rng)).collect();
        rollouts.sort_unstable();
        workload.rollouts = rollouts;
    }
}

/// Draws a disruption budget of any form, including budgets that never allow a disruption.
fn draw_pdb(rng: &mut Rng, max_replicas: u32) -> Option<SimPdb> {
    match rng.u32(0..16) {
        0..3 => Some(SimPdb::MaxUnavailable(1)),
        3 => Some(SimPdb::MaxUnavailable(0)),
        4..6 => Some(SimPdb::MaxUnavailableShare(25)),
        6 => Some(SimPdb::MaxUnavailableShare(100)),
        7 => Some(SimPdb::MinAvailable(max_replicas / 2)),
        8 => Some(SimPdb::MinAvailableShare(50)),
        9 => Some(SimPdb::MinAvailableShare(100)),
        _ => None,
    }
}

fn draw_shortages(rng: &mut Rng) -> Vec<Shortage> {
    let mins = SignedDuration::from_mins;
    let mut shortages = Vec::new();
    for _ in 0..rng.u32(0..3) {
        let from = draw_time(rng);
        let family = draw_one(rng, &FAMILIES);
        shortages.push(Shortage {
            instance_type: Some(format!("{family}*")),
            zone: rng.bool().then(|| draw_one(rng, &ZONES).to_owned()),
            capacity_type: None,
            left: rng.u32(0..4),
            from,
            // The shortage ends with all other faults, so that the state can become stable.
            until: Some(time_after(from, mins(rng.i64(5..=300))).min(time_after(START, LASTS))),
        });
    }
    shortages
}

/// Draws a configuration change of a pool.
fn change_pool(rng: &mut Rng, cluster: &mut Cluster) {
    let index = rng.usize(0..cluster.pools.len());
    let pool = &mut cluster.pools[index];
    match rng.u32(0..5) {
        0 => drop(pool.labels.insert("tier".to_owned(), "gold".to_owned())),
        1 => pool.expire_after = Some(SignedDuration::from_hours(rng.i64(3..=24))),
        2 => pool.disruption.budgets = draw_budgets(rng),
        3 => {
            pool.annotations.insert("example.com/owner".to_owned(), "ops".to_owned());
        }
        // Nodes of the largest types are then drifted.
        _ => require_label(pool, CPUS, &["2", "4"]),
    }
}

/// Changes the configuration so that nothing expires anymore and budgets allow all required
/// disruptions.
fn end_disruptions(cluster: &mut Cluster) {
    for pool in &mut cluster.pools {
        (pool.expire_after, pool.expire_hard_after) = (None, None);
        pool.disruption.budgets = Pool::new("").disruption.budgets;
    }
}

fn cpu_and_memory(cpu_milli: i64, mib: i64) -> Resources {
    Resources { cpu_milli, memory: mib * MIB, ..Resources::default() }
}

fn wants_label(key: &str, value: &str) -> Want {
    Want { key: key.to_owned(), operator: Operator::In, values: vec![value.to_owned()] }
}

fn exists_toleration(key: &str) -> Toleration {
    Toleration {
        key: key.to_owned(),
        operator: TolerationOperator::Exists,
        value: String::new(),
        effect: None,
    }
}
