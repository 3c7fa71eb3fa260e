//! Which pods go where, on what capacity: the first answer that satisfies every rule it weighs.
//! It must not know the clock beyond `now`, who asks, or how a claim is launched.

mod problem;

mod supply;

mod fill;

mod choose;

mod rooms;

mod draft;

mod pack;

mod why;

use jiff::Timestamp;

use crate::model::id::{PodKey, PoolName};
use crate::model::instance::{OfferingKey, Price};
use crate::model::labels::Labels;
use crate::model::pod::Pod;
use crate::model::quantity::Resources;
use crate::solve::pack::{Opened, Packed};
use crate::solve::problem::Problem;
use crate::solve::supply::{Row, Shelf, floored};
use crate::state::snapshot::{Host, Room, Snapshot};

/// A node to be made, with the pods it is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClaim {
    /// The pool.
    pub pool: PoolName,
    /// What may be launched for it, cheapest first; never empty.
    pub offerings: Vec<(OfferingKey, Price)>,
    /// Labels its node must get beyond those of its pool and type, so that its pods agree.
    pub labels: Labels,
    /// Sum of what its pods and daemons ask for.
    pub requests: Resources,
    /// The pods, sorted by key.
    pub pods: Vec<PodKey>,
}

/// Why a pod cannot be placed, as a label for metrics and scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// The pod itself cannot be understood.
    Malformed,
    /// It has a hard constraint that placing does not weigh.
    Unweighed,
    /// It asks for a label that must not be asked for.
    Restricted,
    /// There is no pool.
    NoPool,
    /// It does not tolerate a taint of the pool.
    Taint,
    /// Its node selector or affinity disagrees with the pool.
    Requirements,
    /// No instance type has what it asks for.
    Resources,
    /// Types would fit, but none is offered where and how the pod and the pool want it.
    Offering,
    /// Every offering that would do is held down after a refusal.
    HeldDown,
    /// The pool's limits leave no room.
    Limit,
    /// The step limit of one solve was reached.
    Effort,
}

impl Code {
    /// The spelling in JSON, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Unweighed => "unweighed",
            Self::Restricted => "restricted",
            Self::NoPool => "no_pool",
            Self::Taint => "taint",
            Self::Requirements => "requirements",
            Self::Resources => "resources",
            Self::Offering => "offering",
            Self::HeldDown => "held_down",
            Self::Limit => "limit",
            Self::Effort => "effort",
        }
    }
}

/// One reason, of one pool or of the pod itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Why {
    /// The pool that says no; none where no pool was asked.
    pub pool: Option<PoolName>,
    /// What kind of no it is.
    pub code: Code,
    /// The no in words, with the numbers in it.
    pub text: String,
}

/// A pod with no answer, and why: one reason a pool, or one of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// The pod.
    pub pod: PodKey,
    /// Why, never empty.
    pub reasons: Vec<Why>,
}

/// An answer to every pending pod: each is placed on a host, part of a new claim, or unplaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a solution does nothing unless it is planned"]
pub struct Solution {
    /// Nodes to be made.
    pub claims: Vec<NewClaim>,
    /// Pods that existing hosts will take, by host.
    pub placed: Vec<(Host, Vec<PodKey>)>,
    /// Pods with no answer, by key.
    pub unplaced: Vec<Unplaced>,
}

/// Places every pending pod of the snapshot. Total: whatever the input, it answers; the same input
/// in any order gives the same answer.
pub fn solve(snapshot: &Snapshot<'_>, now: Timestamp) -> Solution {
    let mut unplaced = Vec::new();
    let mut sound = Vec::new();
    for pod in &snapshot.pending {
        match unsound(pod) {
            Some((code, text)) => unplaced.push(Unplaced {
                pod: pod.key.clone(),
                reasons: vec![Why {
                    pool: None,
                    code,
                    text,
                }],
            }),
            None => sound.push(*pod),
        }
    }
    let problem = Problem::new(&sound);
    let mut rooms: Vec<&Room> = snapshot.rooms.iter().collect();
    rooms.sort_by(|one, other| {
        (!one.initialized, &one.host).cmp(&(!other.initialized, &other.host))
    });
    let packed = pack::pack(&problem, &rooms, snapshot, now);
    let mut deal = Deal {
        problem: &problem,
        dealt: vec![0; problem.classes.len()],
    };
    let mut placed = Vec::new();
    for (room, parts) in rooms.iter().zip(&packed.placed) {
        if !parts.is_empty() {
            placed.push((room.host.clone(), keys(&deal.pods(parts.iter().copied()))));
        }
    }
    let claims = deal.claims(&packed);
    unplaced.extend(deal.unplaced(&packed));
    unplaced.sort_by(|one, other| one.pod.cmp(&other.pod));
    Solution {
        claims,
        placed,
        unplaced,
    }
}

/// Why a pod is not even looked at, if so.
fn unsound(pod: &Pod) -> Option<(Code, String)> {
    if !pod.defects.is_empty() {
        return Some((Code::Malformed, pod.defects.join("; ")));
    }
    if !pod.unweighed.is_empty() {
        let fields = pod.unweighed.join(", ");
        return Some((
            Code::Unweighed,
            format!("has {fields}, which is not weighed"),
        ));
    }
    let (key, why) = problem::restricted(pod)?;
    Some((Code::Restricted, format!("asks for the label {key}: {why}")))
}

fn keys(pods: &[&Pod]) -> Vec<PodKey> {
    let mut keys: Vec<PodKey> = pods.iter().map(|pod| pod.key.clone()).collect();
    keys.sort_unstable();
    keys
}

/// Deals the pods of each class out, in the order of their keys.
struct Deal<'d> {
    problem: &'d Problem<'d>,
    dealt: Vec<usize>,
}

impl<'d> Deal<'d> {
    fn pods(&mut self, parts: impl Iterator<Item = (usize, u64)>) -> Vec<&'d Pod> {
        let mut pods = Vec::new();
        for (class, count) in parts {
            let all = &self.problem.classes[class].pods[self.dealt[class]..];
            let some = all
                .iter()
                .take(usize::try_from(count).unwrap_or(usize::MAX));
            pods.extend(some.copied());
            self.dealt[class] += all.len().min(usize::try_from(count).unwrap_or(usize::MAX));
        }
        pods
    }

    fn claims(&mut self, packed: &Packed<'_>) -> Vec<NewClaim> {
        let mut ledgers = packed.ledgers.clone();
        let claim = |opened: &Opened| {
            let shelf = &packed.shelves[opened.shelf];
            let ledger = &mut ledgers[opened.shelf];
            let parts = opened.claim.parts.iter().map(|(_, part)| *part);
            let rows = opened.claim.parts.iter().map(|(row, _)| &packed.rows[*row]);
            let rows: Vec<&Row> = rows.collect();
            let whole = choose::sum(self.problem, parts.clone());
            let (offerings, types) =
                choose::offerings(shelf, opened.claim.shape, &rows, &whole, ledger);
            assert!(!offerings.is_empty(), "a claim can be launched: {opened:?}");
            let pods = self.pods(parts);
            let mut requests = daemons(shelf, &types);
            for pod in &pods {
                requests.add(&floored(&pod.requests));
            }
            NewClaim {
                pool: shelf.pool.name.clone(),
                offerings,
                labels: shelf.labels(&rows),
                requests,
                pods: keys(&pods),
            }
        };
        packed.opened.iter().map(claim).collect()
    }

    fn unplaced(&mut self, packed: &Packed<'_>) -> Vec<Unplaced> {
        let mut unplaced = Vec::new();
        for (class, left) in packed
            .left
            .iter()
            .enumerate()
            .filter(|(_, left)| **left > 0)
        {
            let reasons = reasons(self.problem, packed, class);
            for pod in self.pods([(class, *left)].into_iter()) {
                unplaced.push(Unplaced {
                    pod: pod.key.clone(),
                    reasons: reasons.clone(),
                });
            }
        }
        unplaced
    }
}

fn reasons(problem: &Problem<'_>, packed: &Packed<'_>, class: usize) -> Vec<Why> {
    if packed.shelves.is_empty() {
        return vec![Why {
            pool: None,
            code: Code::NoPool,
            text: "no host has room for it, and there is no pool to make one".to_owned(),
        }];
    }
    let shelves = packed.shelves.iter().zip(&packed.ledgers);
    shelves
        .map(|(shelf, ledger)| why::why(problem, shelf, ledger, class))
        .collect()
}

/// What the daemons of every one of these types ask for at least. Source: spec/scheduling.md §2.9.
fn daemons(shelf: &Shelf<'_>, types: &[usize]) -> Resources {
    let mut all = types.iter().map(|at| &shelf.shapes[*at].daemons);
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
