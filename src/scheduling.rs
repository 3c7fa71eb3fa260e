//! Schedules pending pods onto existing nodes and new NodeClaims, and returns the first solution
//! that satisfies every rule. This module reads no clock except `now` and launches nothing.

/// Why a pod does not fit, as numbers and as text.
pub mod rejection;
/// Index types for the tables of the scheduler.
mod index;
/// The pods to schedule, in classes of identical pods, with dense indices.
mod problem;
/// Which domain counters each class of pods reads and increments.
mod topology;
/// Gangs that cannot be scheduled completely.
mod gangs;
/// Instance types, offerings and limits of a pool.
mod supply;
/// Combinations of topology domains in which new nodes can be.
mod domains;
/// One candidate packing of pods onto new nodes of one pool.
mod packing;
/// The phases: existing nodes, domains, pools by weight; relaxes preferences.
mod scheduler;
/// An alternative plan with an equal number of spread pods on every node.
mod even_spread;
/// Retries the pods for which no valid bind order was found.
mod second_pass;
/// An order in which all pods can be bound while every constraint holds.
mod bind_order;
/// The cost of a solution, computed before pods are assigned to nodes.
pub mod solution_cost;
/// Why a pod has no node, for each pool.
mod diagnose;
/// Assigns planned nodes to one domain so that waiting pods can be scheduled or rejected.
mod assign_domains;
/// One packing with its bind order and domains; keeps the best attempt.
mod attempt;
/// Why a planned node does not have a cheaper instance type.
pub mod cheaper_types;
/// Plans the missing nodes of static pools.
pub mod static_pools;
/// The offerings that one pool can launch now, and the rejections of each requirement and limit.
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
use crate::scheduling::attempt::best_attempt;
use crate::scheduling::diagnose::Diagnosis;
use crate::scheduling::domains::DomainSet;
use crate::scheduling::index::{IndexVec, LocationIndex, PodClassIndex, RowIndex, TypeIndex};
use crate::scheduling::packing::context::{OpenedNode, PackingContext, PackingState};
use crate::scheduling::packing::existing_nodes::PlacementStep;
use crate::scheduling::packing::fill_bin::offerings_of;
use crate::scheduling::packing::launch_options::{LaunchQuery, Ledgers, Scratch, total_requests};
use crate::scheduling::problem::{PodClass, Problem};
use crate::scheduling::rejection::RejectionDetail;
use crate::scheduling::solution_cost::SolutionCost;
use crate::scheduling::supply::compatible::CompatibleOfferings;
use crate::scheduling::supply::daemon_overhead::without_negatives;
use crate::scheduling::supply::min_values::MinValues;
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::scheduling::topology::Topology;
use crate::scheduling::topology::node_counters::{DaemonCounts, NodeConstraintTable};
use crate::state::snapshot::{ExistingNode, NodeRef, Snapshot};

/// A new node, and the pods for which it is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNodeClaim {
    /// The pool.
    pub pool: PoolName,
    /// Offerings of the node, cheapest first; never empty. All of them belong to the same
    /// reservation, or none does: a claim uses exactly the reservation for which it was planned.
    pub offerings: Vec<(OfferingKey, Price)>,
    /// Labels that the pods require of the node, in addition to the labels of its pool and type.
    pub labels: Labels,
    /// Total requests of the pods and DaemonSets of the node.
    pub requests: Resources,
    /// The pods, sorted by key.
    pub pods: Vec<PodKey>,
}

impl NewNodeClaim {
    /// Returns the reservation that the claim uses.
    pub fn reservation(&self) -> Option<&ReservationId> {
        self.offerings.first()?.0.reservation.as_deref()
    }
}

/// A rejection by one pool.
type Rejection = (RejectionCode, RejectionDetail);

/// Why a pod cannot be placed, as a label for metrics and scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RejectionCode {
    /// The pod itself is invalid.
    InvalidPod,
    /// The pod has resource claims, which are not supported.
    ResourceClaims,
    /// The volumes of the pod cannot be used anywhere now.
    Volumes,
    /// Too few pods of the pod's gang can be scheduled.
    Gang,
    /// The priority of the pod is too low to launch nodes.
    Priority,
    /// The pod requires a label that pods must not require.
    RestrictedLabel,
    /// There is no pool for the pod.
    NoPool,
    /// The pod does not tolerate a taint of the pool.
    Taint,
    /// The node selector or affinity of the pod conflicts with the pool.
    Requirements,
    /// The node class of the pool is not ready.
    NodeClass,
    /// No instance type has enough resources.
    Resources,
    /// Types fit, but none has a suitable offering.
    Offering,
    /// The types that fit do not satisfy the `min_values` of the pool.
    MinValues,
    /// No new node satisfies the pod's rules about other pods.
    Topology,
    /// The pod's rules about other pods depend on the location of in-flight nodes.
    WaitingForInFlightNodes,
    /// All matching offerings are unavailable.
    OfferingsUnavailable,
    /// All matching reservations are used up.
    Reservation,
    /// The limits of the pool are reached.
    Limit,
    /// The step limit of one pass was reached.
    SearchLimit,
}

impl RejectionCode {
    /// The spelling in JSON, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidPod => "invalid_pod",
            Self::ResourceClaims => "resource_claims",
            Self::Volumes => "volumes",
            Self::Gang => "gang",
            Self::Priority => "priority",
            Self::RestrictedLabel => "restricted_label",
            Self::NoPool => "no_pool",
            Self::Taint => "taint",
            Self::Requirements => "requirements",
            Self::NodeClass => "node_class",
            Self::Resources => "resources",
            Self::Offering => "offering",
            Self::MinValues => "min_values",
            Self::Topology => "topology",
            Self::WaitingForInFlightNodes => "waiting_for_in_flight_nodes",
            Self::OfferingsUnavailable => "offerings_unavailable",
            Self::Reservation => "reservation",
            Self::Limit => "limit",
            Self::SearchLimit => "search_limit",
        }
    }

    /// Returns the rejection with a message instead of numbers.
    fn with_message(self, text: &str) -> Rejection {
        (self, RejectionDetail::from_message(text))
    }
}

/// A rejection by one pool, or independent of pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRejection {
    /// The rejecting pool, or `None` if no pool was evaluated.
    pub pool: Option<PoolName>,
    /// The code of the rejection.
    pub code: RejectionCode,
    /// The details of the rejection.
    pub miss: RejectionDetail,
}

impl PoolRejection {
    /// The rejection as text, with its numbers.
    pub fn rejection_text(&self) -> String {
        self.miss.text()
    }
}

/// An unschedulable pod with one rejection per pool, or with a single rejection that is independent
/// of pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnschedulablePod {
    /// The pod.
    pub pod: PodKey,
    /// The rejections, never empty. Identical pods share them.
    pub reasons: Arc<[PoolRejection]>,
}

/// The result for every pending pod: placed on a node, part of a new claim, or unschedulable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a solution does nothing unless it is planned"]
pub struct Solution {
    /// New nodes.
    pub claims: Vec<NewNodeClaim>,
    /// Pods placed on existing and in-flight nodes.
    pub placed: Vec<(NodeRef, Vec<PodKey>)>,
    /// Unschedulable pods, by key.
    pub unplaced: Vec<UnschedulablePod>,
    /// All scheduled pods, in an order in which kube-scheduler can bind them if every planned node
    /// exists.
    pub order: Vec<PodKey>,
}

impl Solution {
    /// Adds unschedulable pods.
    fn with_unscheduled(mut self, unplaced: Vec<UnschedulablePod>) -> Self {
        self.unplaced.extend(unplaced);
        self.unplaced.sort_by(|one, other| one.pod.cmp(&other.pod));
        self
    }
}

/// Rounds in which incomplete gangs are removed.
const GANG_ROUNDS_MAX: usize = 8;

/// Schedules every pending pod of the snapshot. Every input has a solution, which does not depend
/// on the input order.
pub fn solve(snapshot: &Snapshot<'_>, now: Timestamp) -> Solution {
    let (mut sound, mut unplaced) = split_valid(snapshot);
    let mut solution = place_pods(&sound, snapshot, now);
    // Gangs are scheduled completely or not at all. Once incomplete gangs are removed, other gangs
    // may have more capacity.
    for round in 0..=GANG_ROUNDS_MAX {
        let mut short = gangs::incomplete_gangs(snapshot, &sound, &solution);
        if short.is_empty() {
            break;
        }
        if round == GANG_ROUNDS_MAX {
            let gangs = sound.iter().filter_map(|pod| pod.gang_key());
            let text = "not analyzed: too many gangs cannot be scheduled completely";
            short.extend(gangs.map(|gang| (gang, RejectionDetail::from_message(text))));
        }
        // Pods of the gang that were unschedulable themselves keep their own reasons, too.
        let reasons_of: BTreeMap<PodKey, Arc<[PoolRejection]>> = solution
            .unplaced
            .iter()
            .map(|unscheduled| (unscheduled.pod.clone(), unscheduled.reasons.clone()))
            .collect();
        sound.retain(|pod| {
            let Some(miss) = pod.gang_key().and_then(|gang| short.get(&gang)) else {
                return true;
            };
            let mut rejected = rejected_pod(pod, (RejectionCode::Gang, miss.clone()));
            let known = reasons_of.get(&pod.key).into_iter();
            let others = known.flat_map(|reasons| reasons.iter());
            rejected.reasons = rejected.reasons.iter().chain(others).cloned().collect();
            unplaced.push(rejected);
            false
        });
        solution = place_pods(&sound, snapshot, now);
    }
    solution.with_unscheduled(unplaced)
}

/// Returns the cost of the solution and, if `is_wanted` accepts the cost, the same solution as
/// [`solve`]. Computing only the cost is cheaper.
pub fn solve_if_wanted(
    snapshot: &Snapshot<'_>,
    now: Timestamp,
    mut is_wanted: impl FnMut(&SolutionCost) -> bool,
) -> (SolutionCost, Option<Solution>) {
    let (sound, unplaced) = split_valid(snapshot);
    if sound.iter().any(|pod| pod.gang.is_some()) {
        let solution = solve(snapshot, now);
        return (SolutionCost::from_solution(&solution, &snapshot.pending), Some(solution));
    }
    let mut weight = SolutionCost::default();
    let solution = place_if_wanted(&sound, snapshot, now, &mut |problem, packed| {
        weight = SolutionCost::new(problem, packed);
        let others = unplaced.iter().map(|rejected| rejected.pod.clone());
        weight.left.extend(others);
        is_wanted(&weight)
    });
    (weight, solution.map(|solution| solution.with_unscheduled(unplaced)))
}

/// Splits pods into valid ones and rejected ones.
fn split_valid<'a>(snapshot: &Snapshot<'a>) -> (Vec<&'a Pod>, Vec<UnschedulablePod>) {
    let mut unplaced = Vec::new();
    let mut sound = Vec::with_capacity(snapshot.pending.len());
    for pod in &snapshot.pending {
        match invalid_reason(pod, snapshot) {
            Some(rejection) => unplaced.push(rejected_pod(pod, rejection)),
            None => sound.push(*pod),
        }
    }
    (sound, unplaced)
}

fn rejected_pod(pod: &Pod, (code, miss): Rejection) -> UnschedulablePod {
    let (pod, pool) = (pod.key.clone(), None);
    let reasons = [PoolRejection { pool, code, miss }].into();
    UnschedulablePod { pod, reasons }
}

fn place_pods(pods: &[&Pod], snapshot: &Snapshot<'_>, now: Timestamp) -> Solution {
    place_if_wanted(pods, snapshot, now, &mut |_, _| true).unwrap_or_default()
}

/// Schedules pods, and assigns them to nodes if `is_wanted` accepts the cost.
fn place_if_wanted(
    pods: &[&Pod],
    snapshot: &Snapshot<'_>,
    now: Timestamp,
    is_wanted: &mut dyn FnMut(&Problem<'_>, &PackingState<'_, '_>) -> bool,
) -> Option<Solution> {
    let problem = Problem::new(pods, snapshot);
    let mut rooms: Vec<&ExistingNode> = snapshot.rooms.iter().collect();
    // Existing nodes are filled in this order.
    rooms.sort_by_key(|room| (!room.initialized, room.idle, &room.host));
    let standing = packing::initial_topology::standing_terms(&problem, snapshot);
    let topology = Topology::new(&problem, &standing);
    let board = packing::initial_topology::initial_state(&problem, &topology, &rooms, snapshot);
    let templates = scheduler::node_templates(&problem, snapshot, now);
    let hosts = NodeConstraintTable::new(&problem, &topology, &board, &DaemonCounts::default());
    let keys = topology.domain_keys().into_iter();
    let keys = keys.map(|key| problem.groups.keys[key].clone());
    let cells = DomainSet::new(keys.collect(), &templates);
    let context = PackingContext {
        problem: &problem,
        topology: &topology,
        hosts: &hosts,
        cells: &cells,
        templates: &templates,
        scheduling: &snapshot.cluster.scheduling,
        passing: vec![OnceCell::new(); topology.filters.len()].into(),
        daemon_overheads: vec![OnceCell::new(); cells.all.len()].into(),
    };
    let (fewer_per_host, with_daemons);
    let packer = scheduler::pack_all(&context, &rooms, snapshot, board.clone());
    let mut best = best_attempt(packer, &board);
    // Nodes with matching DaemonSet pods may not exceed the skew either. They take fewer pods if
    // the node with the fewest matching pods has no such DaemonSet pods.
    let daemon_overheads = packing::daemon_counts::daemon_counts(&topology, &templates);
    if best.unscheduled_pods() > 0 && !daemon_overheads.is_empty() {
        fewer_per_host = NodeConstraintTable::new(&problem, &topology, &board, &daemon_overheads);
        with_daemons = PackingContext {
            hosts: &fewer_per_host,
            passing: context.passing.clone(),
            daemon_overheads: context.daemon_overheads.clone(),
            ..context
        };
        let packer = scheduler::pack_all(&with_daemons, &rooms, snapshot, board.clone());
        let other = best_attempt(packer, &board);
        if other.unscheduled_pods() < best.unscheduled_pods() {
            best = other;
        }
    }
    if best.packer.may_spread_evenly() {
        let packer = even_spread::pack_evenly(&context, &rooms, snapshot, board.clone());
        let other = packer.map(|packer| best_attempt(packer, &board));
        best = other.filter(|other| other.packer.is_better_than(&best.packer)).unwrap_or(best);
    }
    let (packed, offerings) = (best.packer.packed, best.packer.offerings);
    if !is_wanted(&problem, &packed) {
        return None;
    }
    let mut deal = PodAssigner {
        rows: &offerings.rows,
        scheduling: &snapshot.cluster.scheduling,
        queues: problem.classes.iter().map(bind_queue).collect(),
        dealt: vec![0; problem.classes.len()].into(),
    };
    let mut solution = deal.assign_pods(&packed, &rooms, &best.turns);
    let diagnosis = Diagnosis::new(&context, &packed, &rooms, snapshot.holds, best.bound);
    for (class, reasons) in diagnosis.into_rejections() {
        for pod in deal.take_pods(class, packed.left[class]) {
            let (pod, reasons) = (pod.key.clone(), reasons.clone());
            solution.unplaced.push(UnschedulablePod { pod, reasons });
        }
    }
    Some(solution)
}

fn pod_keys(pods: &[&Pod]) -> Vec<PodKey> {
    let mut keys: Vec<PodKey> = pods.iter().map(|pod| pod.key.clone()).collect();
    keys.sort_unstable();
    keys
}

/// Returns why a pod is rejected before scheduling.
fn invalid_reason(pod: &Pod, snapshot: &Snapshot<'_>) -> Option<Rejection> {
    if !pod.defects.is_empty() {
        return Some(RejectionCode::InvalidPod.with_message(&pod.defects.join("; ")));
    }
    if pod.has_resource_claims {
        let text = "has resource claims (dynamic resource allocation), which are not supported";
        return Some(RejectionCode::ResourceClaims.with_message(text));
    }
    let fault = snapshot.mounts.get(&pod.key)?.fault.as_ref()?;
    Some(RejectionCode::Volumes.with_message(fault))
}

/// Returns the pods of a class by version, then by key. kube-scheduler probably binds them in this
/// order, so the pods that it binds first are also assigned first.
fn bind_queue<'a>(class: &PodClass<'a>) -> Vec<&'a Pod> {
    let mut pods = class.pods.clone();
    pods.sort_by_key(|pod| pod.version);
    pods
}

/// Assigns the pods of each class to nodes.
struct PodAssigner<'d> {
    rows: &'d IndexVec<RowIndex, CompatibleOfferings>,
    scheduling: &'d Scheduling,
    queues: IndexVec<PodClassIndex, Vec<&'d Pod>>,
    dealt: IndexVec<PodClassIndex, usize>,
}

impl<'d> PodAssigner<'d> {
    fn take_pods(&mut self, class: PodClassIndex, count: u64) -> Vec<&'d Pod> {
        let pending = &self.queues[class][self.dealt[class]..];
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(pending.len());
        self.dealt[class] += count;
        pending[..count].to_vec()
    }

    /// Assigns pods to every placement step.
    fn assign_pods(
        &mut self,
        packed: &PackingState<'_, '_>,
        rooms: &[&ExistingNode],
        turns: &[PlacementStep],
    ) -> Solution {
        let mut sites: IndexVec<LocationIndex, Vec<&Pod>> =
            vec![Vec::new(); rooms.len() + packed.opened.len()].into();
        let mut order = Vec::new();
        for turn in turns {
            let pods = self.take_pods(turn.class, turn.pods);
            order.extend(pods.iter().map(|pod| pod.key.clone()));
            sites[turn.site].extend(pods);
        }
        let used = rooms.iter().zip(&sites).filter(|(_, pods)| !pods.is_empty());
        let placed = used.map(|(room, pods)| (room.host.clone(), pod_keys(pods)));
        let placed = placed.collect();
        let mut ledgers = packed.ledgers.clone();
        let mut scratch = Scratch::default();
        let mut claims = Vec::new();
        let mut unplaced = Vec::new();
        for (opened, pods) in packed.opened.iter().zip(sites.iter().skip(rooms.len())) {
            if pods.is_empty() {
                continue;
            }
            match self.node_claim(packed, opened, pods, &mut ledgers, &mut scratch) {
                Ok(claim) => claims.push(claim),
                Err(rejection) => {
                    let rejected = pods.iter().map(|pod| rejected_pod(pod, rejection.clone()));
                    unplaced.extend(rejected);
                }
            }
        }
        if !unplaced.is_empty() {
            let gone: BTreeSet<&PodKey> = unplaced.iter().map(|rejected| &rejected.pod).collect();
            order.retain(|key| !gone.contains(key));
        }
        Solution { claims, placed, unplaced, order }
    }

    /// Returns a claim, or why it cannot be launched although it was planned.
    fn node_claim(
        &self,
        packed: &PackingState<'_, '_>,
        opened: &OpenedNode,
        pods: &[&Pod],
        ledgers: &mut Ledgers,
        scratch: &mut Scratch,
    ) -> Result<NewNodeClaim, Rejection> {
        let template = &packed.templates[opened.template];
        let OpenedNode { claim, .. } = opened;
        let variety = MinValues::from_template(template, self.scheduling.min_values);
        let rows = offerings_of(&packed.lots, self.rows, &claim.parts);
        let sum = total_requests(&packed.lots, &claim.parts);
        let query = LaunchQuery::new(template, &variety, &rows, &sum);
        let mut ledger = ledgers.ledger_for(opened.template);
        let (planned, price, options) = (claim.shape, claim.price, self.scheduling);
        let (offerings, types) =
            query.launch_options(planned, price, options, &mut ledger, scratch);
        assert!(!offerings.is_empty(), "a claim can be launched: {opened:?}");
        let is_reserved = template.shapes[claim.shape].reservation.is_some();
        let shortage = variety.shortage(template, types.iter().copied());
        // Other claims may have used the limits that remained when this claim was planned.
        // Reservations need not satisfy `min_values`.
        if let Some(shortage) = shortage.filter(|_| !is_reserved) {
            return Err(shortage);
        }
        ledgers.set_ledger(opened.template, ledger);
        let mut requests = least_daemon_requests(template, &types);
        for pod in pods {
            requests.add(&without_negatives(&pod.requests));
        }
        Ok(NewNodeClaim {
            pool: template.pool.name.clone(),
            offerings,
            labels: template.launch_labels(&rows, claim.shape),
            requests,
            pods: pod_keys(pods),
        })
    }
}

/// Returns, for each resource, the lowest DaemonSet requests of these types. Source:
/// spec/scheduling.md §2.9.
fn least_daemon_requests(template: &NodeTemplate<'_>, types: &[TypeIndex]) -> Resources {
    let mut requests = types.iter().map(|at| &template.shapes[*at].overhead.requests);
    let mut least = requests.next().cloned().unwrap_or_default();
    for other in requests {
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
