//! Which pods go where, on what capacity: the first answer that satisfies every rule it weighs.
//! It must not know the clock beyond `now`, who asks, or how a claim is launched.

/// Why a pod does not fit, in numbers, and as text.
pub mod rejection;
/// The pods to schedule, in classes of identical pods, with dense indices.
mod problem;
/// Which domain counters each class of pods reads and increments.
mod topology;
/// Gangs that cannot be scheduled completely.
mod gangs;
/// Instance types, offerings and limits of a pool.
mod supply;
/// Combinations of topology domains that new nodes can be in.
mod domains;
/// One candidate packing of pods onto new nodes of one pool.
mod packing;
/// The phases: existing nodes, domains, pools by weight; relaxes preferences.
mod scheduler;
/// An alternative plan with an equal number of spread pods on every node.
mod even_spread;
/// Tries pods again that had no valid bind order.
mod second_pass;
/// An order in which all pods can be bound while every constraint holds.
mod bind_order;
/// The cost of a solution without the assignment of pods.
pub mod solution_cost;
/// Why a pod has no node, for each pool.
mod diagnose;
/// Assigns planned nodes to one domain so that waiting pods can be decided.
mod assign_domains;
/// One packing with its bind order and domains; keeps the best attempt.
mod attempt;
/// Why a planned node is no cheaper type.
pub mod cheaper_types;
/// Nodes that static pools lack.
pub mod static_pools;
/// What one pool can launch now, and what each requirement and limit excludes.
pub mod pool_availability;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::cluster::Scheduling;
use crate::model::id::{PodKey, PoolName, ReservationId};
use crate::model::instance::{OfferingKey, Price};
use crate::model::labels::Labels;
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::model::reservation::Reservation;
use crate::scheduling::attempt::{PlacementAttempt, settled};
use crate::scheduling::diagnose::Diagnosis;
use crate::scheduling::domains::DomainSet;
use crate::scheduling::packing::context::{OpenedNode, PackingContext, PackingState};
use crate::scheduling::packing::existing_nodes::PlacementStep;
use crate::scheduling::packing::fill_bin::{ItemCount, rows_in};
use crate::scheduling::problem::{PodClass, Problem};
use crate::scheduling::rejection::RejectionDetail;
use crate::scheduling::solution_cost::SolutionCost;
use crate::scheduling::supply::compatible::CompatibleOfferings;
use crate::scheduling::supply::daemon_overhead::floored;
use crate::scheduling::supply::min_values::MinValues;
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::scheduling::topology::Topology;
use crate::scheduling::topology::node_counters::{DaemonCounts, NodeConstraintTable};
use crate::state::snapshot::{ExistingNode, NodeRef, Snapshot};

/// A node to be made, with the pods it is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNodeClaim {
    /// The pool.
    pub pool: PoolName,
    /// What may be launched for it, cheapest first; never empty. All of one reservation, or none in
    /// any: a claim holds one of exactly what it was counted against.
    pub offerings: Vec<(OfferingKey, Price)>,
    /// Labels its node must get beyond those of its pool and type, so that its pods agree.
    pub labels: Labels,
    /// Sum of what its pods and daemons ask for.
    pub requests: Resources,
    /// The pods, sorted by key.
    pub pods: Vec<PodKey>,
}

impl NewNodeClaim {
    /// The reservation it holds one of.
    pub fn reservation(&self) -> Option<&ReservationId> {
        self.offerings.first()?.0.reservation.as_deref()
    }
}

/// Why a pod cannot be placed, as a label for metrics and scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RejectionCode {
    /// The pod itself cannot be understood.
    Malformed,
    /// It has resource claims, which are not weighed.
    ResourceClaims,
    /// Its volumes cannot be used anywhere now.
    Volumes,
    /// Too few of the pods that are of use only with it have a place.
    Gang,
    /// Its priority is too low to cause nodes to be made.
    Priority,
    /// It asks for a label that must not be asked for.
    Restricted,
    /// There is no pool.
    NoPool,
    /// It does not tolerate a taint of the pool.
    Taint,
    /// Its node selector or affinity disagrees with the pool.
    Requirements,
    /// No node can be made of the pool's node class now.
    NodeClass,
    /// No instance type has what it asks for.
    Resources,
    /// Types would fit, but none is offered where and how the pod and the pool want it.
    Offering,
    /// The types that it fits do not have as many values of a label as the pool wants.
    MinValues,
    /// Where its rules about other pods allow it, there is no place for it, and elsewhere they
    /// keep it away.
    Topology,
    /// The same, but they may allow it a place once it is known where others are.
    Unsettled,
    /// Every offering that would do is held down after a refusal.
    HeldDown,
    /// The reservations that would do have nothing left.
    Reservation,
    /// The pool's limits leave no room.
    Limit,
    /// The step limit of one solve was reached.
    Effort,
}

impl RejectionCode {
    /// The spelling in JSON, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::ResourceClaims => "resource_claims",
            Self::Volumes => "volumes",
            Self::Gang => "gang",
            Self::Priority => "priority",
            Self::Restricted => "restricted",
            Self::NoPool => "no_pool",
            Self::Taint => "taint",
            Self::Requirements => "requirements",
            Self::NodeClass => "node_class",
            Self::Resources => "resources",
            Self::Offering => "offering",
            Self::MinValues => "min_values",
            Self::Topology => "topology",
            Self::Unsettled => "unsettled",
            Self::HeldDown => "held_down",
            Self::Reservation => "reservation",
            Self::Limit => "limit",
            Self::Effort => "effort",
        }
    }
}

/// One reason, of one pool or of the pod itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRejection {
    /// The pool that says no; none where no pool was asked.
    pub pool: Option<PoolName>,
    /// What kind of no it is.
    pub code: RejectionCode,
    /// What it was that stopped the pod, and by how much it missed.
    pub miss: RejectionDetail,
}

impl PoolRejection {
    /// The no in words, with the numbers in it.
    pub fn text(&self) -> String {
        self.miss.text()
    }
}

/// A pod with no answer, and why: one reason a pool, or one of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnschedulablePod {
    /// The pod.
    pub pod: PodKey,
    /// Why, never empty. Pods that are alike share them.
    pub reasons: Arc<[PoolRejection]>,
}

/// An answer to every pending pod: each is placed on a host, part of a new claim, or unplaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a solution does nothing unless it is planned"]
pub struct Solution {
    /// Nodes to be made.
    pub claims: Vec<NewNodeClaim>,
    /// Pods that existing hosts will take, by host.
    pub placed: Vec<(NodeRef, Vec<PodKey>)>,
    /// Pods with no answer, by key.
    pub unplaced: Vec<UnschedulablePod>,
    /// All pods that have a place, in an order in which the scheduler can bind them, every planned
    /// node being there from the start.
    pub order: Vec<PodKey>,
}

impl Solution {
    /// The same with more pods that have no answer.
    fn with(mut self, unplaced: Vec<UnschedulablePod>) -> Self {
        self.unplaced.extend(unplaced);
        self.unplaced.sort_by(|one, other| one.pod.cmp(&other.pod));
        self
    }
}

/// Times that gangs are left out for want of places for all of them.
const GANG_ROUNDS_MAX: usize = 8;

/// Places every pending pod of the snapshot. Total: whatever the input, it answers; the same input
/// in any order gives the same answer.
pub fn solve(snapshot: &Snapshot<'_>, now: Timestamp) -> Solution {
    let (mut sound, mut unplaced) = sound(snapshot);
    let mut solution = placed(&sound, snapshot, now);
    // All or none: without the gangs that fall short the others may have more room.
    for round in 0..=GANG_ROUNDS_MAX {
        let mut short = gangs::short(snapshot, &sound, &solution);
        if short.is_empty() {
            break;
        }
        if round == GANG_ROUNDS_MAX {
            let gangs = sound.iter().filter_map(|pod| pod.gang_key());
            let text = "too many gangs fall short of places to try which of them can be had";
            short.extend(gangs.map(|gang| (gang, RejectionDetail::told(text))));
        }
        // Those of the gang that had no place themselves are told why, too.
        let had = |own: &UnschedulablePod| (own.pod.clone(), own.reasons.clone());
        let had: BTreeMap<PodKey, Arc<[PoolRejection]>> =
            solution.unplaced.iter().map(had).collect();
        sound.retain(|pod| {
            let Some(miss) = pod.gang_key().and_then(|gang| short.get(&gang)) else {
                return true;
            };
            let mut own = alone(pod, RejectionCode::Gang, miss.clone());
            let others = had.get(&pod.key).into_iter().flat_map(|own| own.iter());
            own.reasons = own.reasons.iter().chain(others).cloned().collect();
            unplaced.push(own);
            false
        });
        solution = placed(&sound, snapshot, now);
    }
    solution.with(unplaced)
}

/// What the solution comes to and, where that is wanted, the solution itself, the same that
/// [`solve`] gives. To know only what it comes to is cheaper.
pub fn weigh(
    snapshot: &Snapshot<'_>,
    now: Timestamp,
    mut is_wanted: impl FnMut(&SolutionCost) -> bool,
) -> (SolutionCost, Option<Solution>) {
    let (sound, unplaced) = sound(snapshot);
    if sound.iter().any(|pod| pod.gang.is_some()) {
        let solution = solve(snapshot, now);
        return (
            SolutionCost::of(&solution, &snapshot.pending),
            Some(solution),
        );
    }
    let mut weight = SolutionCost::default();
    let solution = place(&sound, snapshot, now, &mut |problem, packed| {
        weight = SolutionCost::new(problem, packed);
        let others = unplaced.iter().map(|own| own.pod.clone());
        weight.left.extend(others);
        is_wanted(&weight)
    });
    (weight, solution.map(|own| own.with(unplaced)))
}

/// The pods that can be looked at, and why the others cannot.
fn sound<'a>(snapshot: &Snapshot<'a>) -> (Vec<&'a Pod>, Vec<UnschedulablePod>) {
    let mut unplaced = Vec::new();
    let mut sound = Vec::with_capacity(snapshot.pending.len());
    for pod in &snapshot.pending {
        match unsound(pod, snapshot) {
            Some((code, text)) => unplaced.push(alone(pod, code, RejectionDetail::told(&text))),
            None => sound.push(*pod),
        }
    }
    (sound, unplaced)
}

fn alone(pod: &Pod, code: RejectionCode, miss: RejectionDetail) -> UnschedulablePod {
    UnschedulablePod {
        pod: pod.key.clone(),
        reasons: [PoolRejection {
            pool: None,
            code,
            miss,
        }]
        .into(),
    }
}

/// In which order rooms are filled.
fn turn(room: &ExistingNode) -> (bool, bool, &NodeRef) {
    (!room.initialized, room.idle, &room.host)
}

fn placed(pods: &[&Pod], snapshot: &Snapshot<'_>, now: Timestamp) -> Solution {
    place(pods, snapshot, now, &mut |_, _| true).unwrap_or_default()
}

/// Places pods, and deals them out if that is wanted when it is known what it comes to.
fn place(
    pods: &[&Pod],
    snapshot: &Snapshot<'_>,
    now: Timestamp,
    is_wanted: &mut dyn FnMut(&Problem<'_>, &PackingState<'_, '_>) -> bool,
) -> Option<Solution> {
    let problem = Problem::new(pods, snapshot);
    let mut rooms: Vec<&ExistingNode> = snapshot.rooms.iter().collect();
    rooms.sort_by(|one, other| turn(one).cmp(&turn(other)));
    let topology = Topology::new(
        &problem,
        &packing::initial_topology::standing(&problem, snapshot),
    );
    let board = packing::initial_topology::board(&problem, &topology, &rooms, snapshot);
    let shelves = scheduler::shelves(&problem, snapshot, now);
    let hosts = NodeConstraintTable::new(&problem, &topology, &board, &DaemonCounts::new());
    let keys = topology.pinned_keys().into_iter();
    let keys = keys.map(|key| problem.groups.keys[key].clone());
    let cells = DomainSet::new(keys.collect(), &shelves);
    let ground = PackingContext {
        problem: &problem,
        topology: &topology,
        hosts: &hosts,
        cells: &cells,
        shelves: &shelves,
        scheduling: &snapshot.cluster.scheduling,
        passing: vec![OnceCell::new(); topology.filters.len()],
        crews: vec![OnceCell::new(); cells.all.len()],
    };
    let (less, manned);
    let packer = scheduler::pack(&ground, &rooms, snapshot, board.clone());
    let mut best = settled(packer, &board);
    // Hosts with daemons may be no further ahead of the emptiest than others: there is less room
    // on them where that has none.
    let crews = packing::initial_topology::crew_counts(&topology, &shelves);
    if best.left() > 0 && !crews.is_empty() {
        less = NodeConstraintTable::new(&problem, &topology, &board, &crews);
        manned = PackingContext {
            hosts: &less,
            passing: ground.passing.clone(),
            crews: ground.crews.clone(),
            ..ground
        };
        let packer = scheduler::pack(&manned, &rooms, snapshot, board.clone());
        let other = settled(packer, &board);
        if other.left() < best.left() {
            best = other;
        }
    }
    if best.packer.may_level() {
        let packer = even_spread::pack(&ground, &rooms, snapshot, board.clone());
        let other = packer.map(|packer| settled(packer, &board));
        let better =
            |other: &PlacementAttempt<'_, '_, '_>| other.packer.is_better_than(&best.packer);
        best = other.filter(better).unwrap_or(best);
    }
    let PlacementAttempt {
        packer,
        turns,
        bound,
        ..
    } = best;
    let (packed, market) = (packer.packed, packer.market);
    if !is_wanted(&problem, &packed) {
        return None;
    }
    let mut deal = PodAssigner {
        rows: &market.rows,
        scheduling: &snapshot.cluster.scheduling,
        queues: problem.classes.iter().map(queue).collect(),
        dealt: vec![0; problem.classes.len()],
    };
    let mut solution = deal.all(&packed, &rooms, &turns);
    let reasons = Diagnosis::new(&ground, (&packed, &rooms), snapshot.holds, bound);
    solution.unplaced.extend(deal.unplaced(&packed, reasons));
    Some(solution)
}

fn keys(pods: &[&Pod]) -> Vec<PodKey> {
    let mut keys: Vec<PodKey> = pods.iter().map(|pod| pod.key.clone()).collect();
    keys.sort_unstable();
    keys
}

/// Why a pod is not even looked at, if so.
fn unsound(pod: &Pod, snapshot: &Snapshot<'_>) -> Option<(RejectionCode, String)> {
    if !pod.defects.is_empty() {
        return Some((RejectionCode::Malformed, pod.defects.join("; ")));
    }
    if pod.has_resource_claims {
        let text = "has resource claims (dynamic resource allocation), which are not weighed";
        return Some((RejectionCode::ResourceClaims, text.to_owned()));
    }
    let mounts = snapshot.mounts.get(&pod.key)?;
    let fault = mounts.fault.clone()?;
    Some((RejectionCode::Volumes, fault))
}

/// The pods of a class in the order in which the scheduler will most likely look at them, so that
/// it finds those bound that have to be bound before; else by key.
fn queue<'a>(class: &PodClass<'a>) -> Vec<&'a Pod> {
    let mut pods = class.pods.clone();
    pods.sort_by_key(|pod| pod.version);
    pods
}

/// Deals the pods of each class out.
struct PodAssigner<'d> {
    rows: &'d [CompatibleOfferings],
    scheduling: &'d Scheduling,
    queues: Vec<Vec<&'d Pod>>,
    dealt: Vec<usize>,
}

impl<'d> PodAssigner<'d> {
    fn pods(&mut self, class: usize, count: u64) -> Vec<&'d Pod> {
        let all = &self.queues[class][self.dealt[class]..];
        let count = all.len().min(usize::try_from(count).unwrap_or(usize::MAX));
        self.dealt[class] += count;
        all[..count].to_vec()
    }

    /// Gives every turn its pods.
    fn all(
        &mut self,
        packed: &PackingState<'_, '_>,
        rooms: &[&ExistingNode],
        turns: &[PlacementStep],
    ) -> Solution {
        let mut sites: Vec<Vec<&Pod>> = vec![Vec::new(); rooms.len() + packed.opened.len()];
        let mut order = Vec::new();
        for turn in turns {
            let pods = self.pods(turn.class, turn.pods);
            order.extend(pods.iter().map(|pod| pod.key.clone()));
            sites[turn.site].extend(pods);
        }
        let mut placed = Vec::new();
        for (room, pods) in rooms.iter().zip(&sites) {
            if !pods.is_empty() {
                placed.push((room.host.clone(), keys(pods)));
            }
        }
        let mut books = (
            packed.ledgers.clone(),
            packing::launch_options::Scratch::default(),
        );
        let mut claims = Vec::new();
        let mut unplaced = Vec::new();
        for (opened, pods) in packed.opened.iter().zip(&sites[rooms.len()..]) {
            if pods.is_empty() {
                continue;
            }
            match claim(
                (packed, self.rows),
                opened,
                (pods, self.scheduling),
                &mut books,
            ) {
                Ok(claim) => claims.push(claim),
                Err(miss) => {
                    let no = |pod: &&Pod| alone(pod, RejectionCode::MinValues, miss.clone());
                    unplaced.extend(pods.iter().map(no));
                }
            }
        }
        if !unplaced.is_empty() {
            let gone: BTreeSet<&PodKey> = unplaced.iter().map(|own| &own.pod).collect();
            order.retain(|key| !gone.contains(key));
        }
        Solution {
            claims,
            placed,
            unplaced,
            order,
        }
    }

    fn unplaced(
        &mut self,
        packed: &PackingState<'_, '_>,
        reasons: Diagnosis<'_, '_, '_>,
    ) -> Vec<UnschedulablePod> {
        let mut unplaced = Vec::new();
        for (class, reasons) in reasons.all() {
            for pod in self.pods(class, packed.left[class]) {
                unplaced.push(UnschedulablePod {
                    pod: pod.key.clone(),
                    reasons: reasons.clone(),
                });
            }
        }
        unplaced
    }
}

/// A claim, or why it cannot be had after all.
fn claim(
    (packed, rows): (&PackingState<'_, '_>, &[CompatibleOfferings]),
    opened: &OpenedNode,
    (pods, scheduling): (&[&Pod], &Scheduling),
    (ledgers, scratch): &mut (
        packing::launch_options::Ledgers,
        packing::launch_options::Scratch,
    ),
) -> Result<NewNodeClaim, RejectionDetail> {
    let shelf = &packed.shelves[opened.shelf];
    let variety = MinValues::of(shelf, scheduling.min_values);
    let parts: &[ItemCount] = &opened.claim.parts;
    let own = rows_in(&packed.lots, parts).into_iter();
    let rows: Vec<&CompatibleOfferings> = own.map(|row| &rows[row]).collect();
    let whole = packing::launch_options::sum(&packed.lots, parts);
    let mut ledger = ledgers.of(opened.shelf);
    let (offerings, types) = packing::launch_options::offerings(
        (shelf, &variety),
        (opened.claim.shape, opened.claim.price),
        &rows,
        (&whole, scheduling),
        (&mut ledger, scratch),
    );
    assert!(!offerings.is_empty(), "a claim can be launched: {opened:?}");
    let planned = &shelf.shapes[opened.claim.shape];
    let short = variety.shortage(shelf, types.iter().copied());
    // Others may have taken what the limits left when this one was planned. What is reserved needs
    // no variety.
    if let Some((key, least, count)) = short.filter(|_| planned.reservation.is_none()) {
        let key = key.to_owned();
        return Err(RejectionDetail::Values { key, least, count });
    }
    ledgers.put(opened.shelf, ledger);
    let mut requests = daemons(shelf, &types);
    for pod in pods {
        requests.add(&floored(&pod.requests));
    }
    let mut labels = shelf.labels(&rows);
    let reservation = planned.reservation.map(|own| &shelf.reservations[own]);
    labels.extend(reservation.map(Reservation::labels).into_iter().flatten());
    Ok(NewNodeClaim {
        pool: shelf.pool.name.clone(),
        offerings,
        labels,
        requests,
        pods: keys(pods),
    })
}

/// What the daemons of every one of these types ask for at least. Source: spec/scheduling.md §2.9.
fn daemons(shelf: &NodeTemplate<'_>, types: &[usize]) -> Resources {
    let mut all = types.iter().map(|at| &shelf.shapes[*at].crew.requests);
    let mut least = all.next().cloned().unwrap_or_default();
    for other in all {
        least.cpu_milli = least.cpu_milli.min(other.cpu_milli);
        least.memory = least.memory.min(other.memory);
        least.ephemeral_storage = least.ephemeral_storage.min(other.ephemeral_storage);
        least.pods = least.pods.min(other.pods);
        for (name, amount) in &mut least.extended {
            *amount = (*amount).min(other.get(name));
        }
    }
    least
}
