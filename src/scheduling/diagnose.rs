//! Why a pod has no answer: for each pool, the first constraint that nothing of the pool satisfies.
//! It must not know how pods were packed, only what was left when they were.

pub(super) mod no_offering;
/// Which topology constraint rejects a pod in which domains.
pub(super) mod topology;

use std::sync::Arc;

use crate::model::labels::{NODE_NAME, restriction};
use crate::model::requirement::Requirements;
use crate::scheduling::diagnose::no_offering::{unlimited, unsold};
use crate::scheduling::diagnose::topology::TopologyDiagnosis;
use crate::scheduling::packing::context::{PackingContext, PackingState};
use crate::scheduling::packing::initial_topology::still_to_come;
use crate::scheduling::problem::daemon_constraints::ConstrainedDaemons;
use crate::scheduling::problem::resource_vector::times;
use crate::scheduling::problem::{NodeRequirements, Problem};
use crate::scheduling::rejection::{RejectionDetail, ResourceShortfall, part};
use crate::scheduling::supply::compatible::{CompatibleOfferings, Incompatibility};
use crate::scheduling::supply::min_values::MinValues;
use crate::scheduling::supply::node_template::{NodeTemplate, TypeOption, of_types, sells};
use crate::scheduling::topology::topology_state::TopologyState;
use crate::scheduling::{PoolRejection, RejectionCode};
use crate::state::snapshot::ExistingNode;
use crate::state::unavailable_offerings::UnavailableOfferings;

/// Steps of the reasons of one solve, each a type looked at for one class in one pool: about a
/// second. Ten thousand classes in ten pools of eight hundred types take eighty million.
const STEPS_MAX: u64 = 100_000_000;

/// Steps that holding the labels of a type against those wanted takes; its resources take one.
const LABEL_STEPS: u64 = 16;

/// Hosts that are told of one pod.
const HOSTS_TOLD: usize = 3;

/// A no of one pool.
pub(super) type Rejection = (RejectionCode, RejectionDetail);

/// What is left when all is packed, and the reasons for it.
pub(super) struct Diagnosis<'r, 'p, 'a> {
    ground: &'r PackingContext<'p, 'a>,
    packed: &'r PackingState<'p, 'a>,
    rooms: &'r [&'r ExistingNode],
    holds: &'r UnavailableOfferings,
    varieties: Vec<MinValues<'r>>,
    /// Everybody's place in the end; only where somebody's place matters is it looked at.
    board: TopologyState<'p>,
    places: Option<TopologyDiagnosis<'p>>,
    steps: u64,
}

/// What a pool has for pods of certain wants, by one alternative of theirs.
enum PoolOffer {
    /// Nothing.
    No(RejectionCode, RejectionDetail),
    /// Types whose labels and ports suit them.
    Some(Suited),
}

struct Suited {
    labels: Requirements,
    /// The types, by their places on the shelf, and whether each is sold as wanted.
    types: Vec<(usize, bool)>,
    /// The cells where anything is sold, with what; worked out once it matters.
    cells: Option<Vec<(usize, CompatibleOfferings)>>,
}

impl<'r, 'p, 'a> Diagnosis<'r, 'p, 'a> {
    /// `board` has all hosts and all that is bound there in the end.
    pub(super) fn new(
        ground: &'r PackingContext<'p, 'a>,
        (packed, rooms): (&'r PackingState<'p, 'a>, &'r [&'r ExistingNode]),
        holds: &'r UnavailableOfferings,
        board: TopologyState<'p>,
    ) -> Self {
        let min_values = ground.scheduling.min_values;
        let varieties = ground.shelves.iter();
        Self {
            ground,
            packed,
            rooms,
            holds,
            varieties: varieties
                .map(|own| MinValues::of(own, min_values))
                .collect(),
            board,
            places: None,
            steps: 0,
        }
    }

    /// The reasons of every class of which pods are left. Classes that want the same of a node are
    /// looked at together, so that what types suit them is found out once.
    pub(super) fn all(mut self) -> Vec<(usize, Arc<[PoolRejection]>)> {
        let problem = self.ground.problem;
        let wants = |class: usize| {
            let kind = problem.without_wishes(problem.classes[class].kind);
            problem.kinds[kind].wants
        };
        let left = self.packed.left.iter().enumerate();
        let left = left.filter(|(_, left)| **left > 0);
        let mut classes: Vec<(usize, usize)> = left.map(|(own, _)| (wants(own), own)).collect();
        classes.sort_unstable();
        let mut all = Vec::with_capacity(classes.len());
        let mut known: Option<(usize, Vec<Vec<PoolOffer>>)> = None;
        for (wants, class) in classes {
            if let Some(why) = self.of_itself(class) {
                all.push((class, [why].into()));
                continue;
            }
            if self.steps > STEPS_MAX {
                let text = "it is not looked into: there are too many kinds of pods without a \
                            place to say of each what stops it";
                let (pool, code, miss) = (None, RejectionCode::Effort, RejectionDetail::told(text));
                all.push((class, [PoolRejection { pool, code, miss }].into()));
                continue;
            }
            let offers = match known.take().filter(|(of, _)| *of == wants) {
                Some((_, offers)) => offers,
                None => self.offers(&problem.wants[wants]),
            };
            let (_, offers) = known.insert((wants, offers));
            let mut reasons = Vec::with_capacity(offers.len());
            for (shelf, offers) in offers.iter_mut().enumerate() {
                reasons.push(self.why(class, shelf, offers));
            }
            all.push((class, reasons.into()));
        }
        all
    }

    /// What keeps a class from every pool, if anything does.
    fn of_itself(&self, class: usize) -> Option<PoolRejection> {
        let own = self.ground.problem.classes[class].priority;
        let cutoff = self.ground.scheduling.priority_cutoff;
        let (code, miss) = if let Some(cutoff) = cutoff.filter(|cutoff| own < *cutoff) {
            (
                RejectionCode::Priority,
                RejectionDetail::Priority { own, cutoff },
            )
        } else if self.ground.shelves.is_empty() {
            let text = "no host has room for it, and there is no pool to make one";
            (RejectionCode::NoPool, RejectionDetail::told(text))
        } else {
            let text = restricted(self.ground.problem, class)?;
            (RejectionCode::Restricted, RejectionDetail::told(&text))
        };
        Some(PoolRejection {
            pool: None,
            code,
            miss,
        })
    }

    fn offers(&mut self, wants: &NodeRequirements<'_>) -> Vec<Vec<PoolOffer>> {
        let types = self.ground.shelves.iter().map(|shelf| shelf.shapes.len());
        let types = types.sum::<usize>() * wants.alternatives.len();
        self.steps += LABEL_STEPS * types as u64;
        let of = |shelf: &NodeTemplate<'_>| {
            let alternatives = wants.alternatives.iter();
            let offer = |own| offer(shelf, wants, own, &self.ground.problem.agents);
            alternatives.map(offer).collect()
        };
        self.ground.shelves.iter().map(of).collect()
    }

    /// Why a pool has nothing for a class of pods. Of several alternatives the one that came
    /// furthest is told.
    fn why(&mut self, class: usize, shelf: usize, offers: &mut [PoolOffer]) -> PoolRejection {
        let mut furthest: Option<Rejection> = None;
        for offer in offers {
            let (code, miss) = match offer {
                PoolOffer::No(code, miss) => (*code, miss.clone()),
                PoolOffer::Some(suited) => self.answer(class, shelf, suited),
            };
            if furthest.as_ref().is_none_or(|(other, _)| code > *other) {
                furthest = Some((code, miss));
            }
        }
        let nothing = || {
            (
                RejectionCode::Requirements,
                RejectionDetail::told("asks for nothing that can be"),
            )
        };
        let (code, miss) = furthest.unwrap_or_else(nothing);
        PoolRejection {
            pool: Some(self.ground.shelves[shelf].pool.name.clone()),
            code,
            miss,
        }
    }

    /// What is in the way where types suit a class.
    fn answer(&mut self, class: usize, at: usize, suited: &mut Suited) -> Rejection {
        let problem = self.ground.problem;
        let shelf = &self.ground.shelves[at];
        let ledger = &self.packed.ledgers.of(at);
        let demand = &problem.classes[class].demand[..];
        self.steps += suited.types.len() as u64;
        let fits = |own: &&(usize, bool)| fits(&shelf.shapes[own.0], demand);
        let fitting: Vec<(usize, bool)> = suited.types.iter().filter(fits).copied().collect();
        if fitting.is_empty() {
            return (
                RejectionCode::Resources,
                unfit(problem, shelf, suited, demand),
            );
        }
        let sold = fitting.iter().filter(|(_, sold)| *sold);
        let sold: Vec<usize> = sold.map(|(shape, _)| *shape).collect();
        if sold.is_empty() {
            return unsold(self.holds, shelf, &fitting, &suited.labels);
        }
        let allowed = |shape: &usize| ledger.copies(&shelf.shapes[*shape].limited) > 0;
        let would_do: Vec<usize> = sold.iter().copied().filter(allowed).collect();
        if would_do.is_empty() {
            return unlimited(shelf, &sold, ledger);
        }
        if let Some((key, least, count)) =
            self.varieties[at].shortage(shelf, would_do.iter().copied())
        {
            let key = key.to_owned();
            return (
                RejectionCode::MinValues,
                RejectionDetail::Values { key, least, count },
            );
        }
        // What could be had, and yet was not.
        self.unmet(class, at, (suited, &would_do))
    }

    /// Which rules about other pods keep a pod from what the pool could make.
    fn unmet(
        &mut self,
        class: usize,
        shelf: usize,
        (suited, would_do): (&mut Suited, &[usize]),
    ) -> Rejection {
        let problem = self.ground.problem;
        let own = &problem.classes[class];
        let kind = problem.without_wishes(own.kind);
        let steps = || {
            let text = "the step limit of one solve was reached before this pod's turn";
            (RejectionCode::Effort, RejectionDetail::told(text))
        };
        if self.packed.cut_short || self.ground.topology.checks[kind].is_empty() {
            return steps();
        }
        let of = &self.ground.shelves[shelf];
        let cells = suited.cells.get_or_insert_with(|| {
            let asked = (problem.wants_of(kind), &problem.agents);
            let row = of.row(asked, &suited.labels);
            let cells = self.ground.cells;
            let narrow = |cell| Some((cell, cells.narrow((shelf, cell), &row, &suited.labels)?));
            (0..cells.all.len()).filter_map(narrow).collect()
        });
        let sells = |(cell, row): &(usize, CompatibleOfferings)| {
            let mut types = would_do.iter();
            types.any(|shape| row.masks[*shape] != 0).then_some(*cell)
        };
        let cells: Vec<usize> = cells.iter().filter_map(sells).collect();
        self.steps += LABEL_STEPS * cells.len() as u64;
        let asked = (problem.wants_of(kind), &problem.agents);
        let row = of.row(asked, &suited.labels);
        let is_had = would_do.iter().any(|shape| row.masks[*shape] != 0);
        let (ground, board) = (self.ground, &self.board);
        let places = self
            .places
            .get_or_insert_with(|| TopologyDiagnosis::new(ground, board.clone()));
        match places.miss(kind, &cells) {
            // Others keep it away, and not everywhere: it had no turn among them.
            Some(RejectionDetail::Places { open, .. })
                if open > 0 && problem.rules_of(kind).is_empty() =>
            {
                steps()
            }
            Some(RejectionDetail::Places { open: 0, .. })
                if places
                    .may(kind)
                    .iter()
                    .any(|own| own.map_or(is_had, |own| cells.contains(&own))) =>
            {
                (RejectionCode::Unsettled, self.unsettled())
            }
            Some(miss) => (RejectionCode::Topology, miss),
            None => steps(),
        }
    }
}

impl Diagnosis<'_, '_, '_> {
    fn unsettled(&self) -> RejectionDetail {
        let hosts = still_to_come(self.ground.problem, self.rooms);
        let count = hosts.len();
        let hosts = hosts.into_iter().take(HOSTS_TOLD).map(part);
        RejectionDetail::Unsettled {
            count,
            hosts: hosts.collect(),
        }
    }
}

/// What a pool has for pods, whatever resources they ask for.
fn offer(
    shelf: &NodeTemplate<'_>,
    wants: &NodeRequirements<'_>,
    alternative: &Requirements,
    agents: &ConstrainedDaemons<'_>,
) -> PoolOffer {
    let labels = match shelf.admit(wants, alternative, true) {
        Err(Incompatibility::Taint(taint)) => {
            return PoolOffer::No(RejectionCode::Taint, RejectionDetail::Taint(taint));
        }
        Err(Incompatibility::Label(no)) => {
            return PoolOffer::No(
                RejectionCode::Requirements,
                RejectionDetail::Label(Arc::new(no)),
            );
        }
        Ok(labels) => labels,
    };
    if let Some(fault) = shelf.fault {
        return PoolOffer::No(RejectionCode::NodeClass, RejectionDetail::told(fault));
    }
    if shelf.shapes.is_empty() {
        let text = "no instance type satisfies the pool's own requirements";
        return PoolOffer::No(RejectionCode::Requirements, RejectionDetail::told(text));
    }
    let asked = of_types(&labels);
    let suits = |shape: &usize| shelf.shapes[*shape].suits(&asked).is_ok();
    let suited: Vec<usize> = (0..shelf.shapes.len()).filter(suits).collect();
    if suited.is_empty() {
        return PoolOffer::No(RejectionCode::Requirements, unsuited(shelf, &labels));
    }
    let free = |own: &&usize| shelf.has_ports(&shelf.shapes[**own], (wants, agents), &labels);
    let free: Vec<usize> = suited.iter().filter(free).copied().collect();
    if free.is_empty() {
        let types = suited.len();
        return PoolOffer::No(RejectionCode::Resources, RejectionDetail::Ports { types });
    }
    let bar = |shape: &usize| shelf.bar(&shelf.shapes[*shape], (wants, agents), &labels);
    let open = free.iter().filter(|shape| bar(shape).is_none());
    let types = open.map(|shape| {
        let mut offers = shelf.shapes[*shape].offers.iter();
        (*shape, offers.any(|offer| sells(&labels, offer)))
    });
    let types: Vec<(usize, bool)> = types.collect();
    if let (true, Some(first)) = (types.is_empty(), free.iter().find_map(bar)) {
        let (types, daemon) = (free.len(), part(agents.name(first)));
        return PoolOffer::No(
            RejectionCode::Topology,
            RejectionDetail::Daemon { types, daemon },
        );
    }
    PoolOffer::Some(Suited {
        labels,
        types,
        cells: None,
    })
}

/// The label that a class asks for and no new node may be asked for, if that is in every
/// alternative of it. Source: spec/scheduling.md §1.4 (b).
fn restricted(problem: &Problem<'_>, class: usize) -> Option<String> {
    let wants = problem.wants_of(problem.without_wishes(problem.classes[class].kind));
    let forbidden = |own: &Requirements| {
        let told = |key: &str| match key {
            NODE_NAME => Some("that node alone could take it".to_owned()),
            key => Some(restriction(key)?.to_owned()),
        };
        let mut found = own
            .iter()
            .filter(|(_, wanted)| !wanted.allows_absence())
            .filter_map(|(key, _)| Some((key.to_owned(), told(key)?)));
        found.next()
    };
    let found: Option<Vec<_>> = wants.alternatives.iter().map(forbidden).collect();
    let (key, why) = found?.into_iter().next()?;
    Some(format!("asks for the label {key}: {why}"))
}

fn fits(shape: &TypeOption<'_>, demand: &[i64]) -> bool {
    let net = shape.net.as_ref();
    net.is_some_and(|net| times(net, demand) > 0)
}

/// Which label no type of the pool has as wanted.
fn unsuited(shelf: &NodeTemplate<'_>, labels: &Requirements) -> RejectionDetail {
    let types = shelf.shapes.len();
    for (key, wanted) in labels.iter() {
        let alone: Requirements = [(key, wanted.clone())].into_iter().collect();
        let alone = of_types(&alone);
        if !shelf.shapes.iter().any(|shape| shape.suits(&alone).is_ok()) {
            return RejectionDetail::Types {
                key: Some(part(key)),
                wanted: part(wanted),
                types,
            };
        }
    }
    RejectionDetail::Types {
        key: None,
        wanted: part(labels),
        types,
    }
}

/// Which type comes nearest to what is asked for, and what it is short of: of the types with all
/// but one resource the one with most of it, else one that is short of as few as any.
fn unfit(
    problem: &Problem<'_>,
    shelf: &NodeTemplate<'_>,
    suited: &Suited,
    demand: &[i64],
) -> RejectionDetail {
    let nets = suited.types.iter().filter_map(|(shape, _)| {
        let shape = &shelf.shapes[*shape];
        Some((shape, shape.net.as_deref()?))
    });
    // How many resources it lacks, and the first of them.
    let lacks = |net: &[i64]| {
        let axes = demand.iter().zip(net).enumerate();
        let mut lacks = axes.filter(|(_, (wanted, there))| wanted > there);
        let first = lacks.next().map_or(0, |(axis, _)| axis);
        (1 + lacks.count(), first)
    };
    // Fewest lacks, then the first resource by its ordinal, then most of it, then by name.
    let mut best: Option<((usize, usize), &[i64], &TypeOption<'_>)> = None;
    let mut rivals = 0;
    for (shape, net) in nets {
        let own = lacks(net);
        match &best {
            Some((other, ..)) if own > *other => continue,
            Some((other, ..)) if own == *other => rivals += 1,
            _ => rivals = 1,
        }
        let others = if own.0 > 1 { 0 } else { net.len() };
        let more = |(other, most, _): &((usize, usize), &[i64], &TypeOption<'_>)| {
            own < *other || (net[own.1], &net[others..]) > (most[own.1], &most[others..])
        };
        if best.as_ref().is_none_or(more) {
            best = Some((own, net, shape));
        }
    }
    let short = |axis: usize, left: i64| ResourceShortfall {
        name: part(problem.axes.name(axis)),
        asked: demand[axis],
        left,
    };
    match best {
        Some(((lacks, _), net, shape)) => RejectionDetail::Resources {
            types: if lacks == 1 {
                rivals
            } else {
                suited.types.len()
            },
            short: (0..demand.len())
                .filter(|axis| demand[*axis] > net[*axis])
                .map(|axis| short(axis, net[axis]))
                .collect(),
            nearest: Some(shape.instance_type.name.clone()),
        },
        None => RejectionDetail::Resources {
            short: (0..demand.len())
                .filter(|axis| demand[*axis] > 0)
                .map(|axis| short(axis, 0))
                .collect(),
            nearest: None,
            types: suited.types.len(),
        },
    }
}
