//! Explains why a pod is unschedulable: for each pool, the first constraint that nothing in the
//! pool satisfies.

// Why no offering is available.
pub(super) mod no_offering;
/// Which topology constraints reject a pod, and in which domains.
pub(super) mod topology;

use std::sync::Arc;

use crate::model::labels::{NODE_NAME, label_restriction};
use crate::model::requirement::Requirements;
use crate::scheduling::diagnose::no_offering::{limit_rejection, offering_rejection};
use crate::scheduling::diagnose::topology::TopologyDiagnosis;
use crate::scheduling::index::{
    DomainIndex, IndexVec, PodClassIndex, RequirementsIndex, TemplateIndex, TypeIndex,
};
use crate::scheduling::packing::context::{PackingContext, PackingState};
use crate::scheduling::packing::initial_topology::undecided_nodes;
use crate::scheduling::problem::daemon_constraints::ConstrainedDaemons;
use crate::scheduling::problem::{NodeRequirements, Problem};
use crate::scheduling::rejection::{RejectionDetail, ResourceShortfall, bounded_text};
use crate::scheduling::supply::compatible::{CompatibleOfferings, Incompatibility};
use crate::scheduling::supply::min_values::MinValues;
use crate::scheduling::supply::node_template::{NodeTemplate, TypeOption, offering_matches};
use crate::scheduling::supply::offering_labels::type_requirements;
use crate::scheduling::topology::topology_state::TopologyState;
use crate::scheduling::{PoolRejection, Rejection, RejectionCode};
use crate::state::snapshot::ExistingNode;
use crate::state::unavailable_offerings::UnavailableOfferings;

/// Step limit of one diagnosis, about a second. One step evaluates a type for one class in one
/// pool. Ten thousand classes in ten pools of eight hundred types take eighty million steps.
const STEPS_MAX: u64 = 100_000_000;

/// Number of steps to match the labels of a type. Matching its resources takes one step.
const LABEL_STEPS: u64 = 16;

/// Maximum number of nodes listed per pod.
const HOSTS_TOLD: usize = 3;

/// Unscheduled pods after packing, and the state that explains why.
pub(super) struct Diagnosis<'r, 'p, 'a> {
    ground: &'r PackingContext<'p, 'a>,
    packed: &'r PackingState<'p, 'a>,
    rooms: &'r [&'r ExistingNode],
    holds: &'r UnavailableOfferings,
    varieties: IndexVec<TemplateIndex, MinValues<'r>>,
    /// Final locations of all pods. The locations are evaluated only for topology rules.
    board: TopologyState<'p>,
    places: Option<TopologyDiagnosis<'p>>,
    steps: u64,
}

/// The supply of a pool for one alternative of the requirements of a pod, or why there is none.
type PoolOffer = Result<Suited, Rejection>;

/// Types with matching labels and free host ports.
struct Suited {
    labels: Requirements,
    /// Index of each type, and whether the type has a matching offering.
    types: Vec<(TypeIndex, bool)>,
    /// Domains with matching offerings, computed on demand.
    cells: Option<Vec<(DomainIndex, CompatibleOfferings)>>,
}

impl<'r, 'p, 'a> Diagnosis<'r, 'p, 'a> {
    /// `board` contains all nodes, and all pods that are bound at the end of the plan.
    pub(super) fn new(
        ground: &'r PackingContext<'p, 'a>,
        packed: &'r PackingState<'p, 'a>,
        rooms: &'r [&'r ExistingNode],
        holds: &'r UnavailableOfferings,
        board: TopologyState<'p>,
    ) -> Self {
        let min_values = ground.scheduling.min_values;
        let templates = ground.templates.iter();
        Self {
            ground,
            packed,
            rooms,
            holds,
            varieties: templates
                .map(|template| MinValues::from_template(template, min_values))
                .collect(),
            board,
            places: None,
            steps: 0,
        }
    }

    /// Returns the rejections of every class with unscheduled pods. Classes with the same
    /// requirements are grouped, so that their matching types are computed once.
    pub(super) fn into_rejections(mut self) -> Vec<(PodClassIndex, Arc<[PoolRejection]>)> {
        let problem = self.ground.problem;
        let left = self.packed.left.iter_enumerated();
        let mut classes: Vec<(RequirementsIndex, PodClassIndex)> = left
            .filter(|(_, left)| **left > 0)
            .map(|(class, _)| {
                let kind = problem.without_preferences(problem.classes[class].kind);
                (problem.kinds[kind].wants, class)
            })
            .collect();
        classes.sort_unstable();
        let mut all = Vec::with_capacity(classes.len());
        let mut known: Option<(RequirementsIndex, IndexVec<TemplateIndex, Vec<PoolOffer>>)> = None;
        for (wants, class) in classes {
            if let Some(rejection) = self.pool_independent_rejection(class) {
                all.push((class, [rejection].into()));
                continue;
            }
            if self.steps > STEPS_MAX {
                let text = "not analyzed: too many kinds of pods are unschedulable to determine \
                            the reason for each";
                let (pool, (code, miss)) = (None, RejectionCode::SearchLimit.with_message(text));
                all.push((class, [PoolRejection { pool, code, miss }].into()));
                continue;
            }
            let offers = match known.take().filter(|(known_wants, _)| *known_wants == wants) {
                Some((_, offers)) => offers,
                None => self.pool_offers(&problem.wants[wants]),
            };
            let (_, offers) = known.insert((wants, offers));
            let offers = offers.iter_mut_enumerated();
            let reasons =
                offers.map(|(template, offers)| self.closest_rejection(class, template, offers));
            all.push((class, reasons.collect()));
        }
        all
    }

    /// Returns a rejection that is independent of pools, if any.
    fn pool_independent_rejection(&self, class: PodClassIndex) -> Option<PoolRejection> {
        let priority = self.ground.problem.classes[class].priority;
        let cutoff = self.ground.scheduling.priority_cutoff;
        let (code, miss) = if let Some(cutoff) = cutoff.filter(|cutoff| priority < *cutoff) {
            let miss = RejectionDetail::Priority { priority, cutoff };
            (RejectionCode::Priority, miss)
        } else if self.ground.templates.is_empty() {
            let text = "no existing node fits it, and there is no pool to launch one";
            RejectionCode::NoPool.with_message(text)
        } else {
            let text = restricted_label(self.ground.problem, class)?;
            RejectionCode::RestrictedLabel.with_message(&text)
        };
        let pool = None;
        Some(PoolRejection { pool, code, miss })
    }

    fn pool_offers(
        &mut self,
        wants: &NodeRequirements<'_>,
    ) -> IndexVec<TemplateIndex, Vec<PoolOffer>> {
        let templates = self.ground.templates.iter();
        let types = templates.clone().map(|template| template.shapes.len());
        let types = types.sum::<usize>() * wants.alternatives.len();
        self.steps += LABEL_STEPS * types as u64;
        let agents = &self.ground.problem.agents;
        let offers = templates.map(|template| {
            let alternatives = wants.alternatives.iter();
            let offers = alternatives.map(|labels| pool_offer(template, wants, labels, agents));
            offers.collect()
        });
        offers.collect()
    }

    /// Returns why a pool rejects a class. If there are several alternatives, the rejection of the
    /// closest alternative is reported.
    fn closest_rejection(
        &mut self,
        class: PodClassIndex,
        template: TemplateIndex,
        offers: &mut [PoolOffer],
    ) -> PoolRejection {
        let mut furthest: Option<Rejection> = None;
        for offer in offers {
            let rejection = match offer {
                Err(rejection) => rejection.clone(),
                Ok(suited) => self.rejection_by_type(class, template, suited),
            };
            if furthest.as_ref().is_none_or(|(other, _)| rejection.0 > *other) {
                furthest = Some(rejection);
            }
        }
        let (code, miss) = furthest.unwrap_or_else(|| {
            RejectionCode::Requirements.with_message("its requirements contradict each other")
        });
        let pool = Some(self.ground.templates[template].pool.name.clone());
        PoolRejection { pool, code, miss }
    }

    /// Returns the rejection of a class if some types match the labels that its pods require.
    fn rejection_by_type(
        &mut self,
        class: PodClassIndex,
        pool: TemplateIndex,
        suited: &mut Suited,
    ) -> Rejection {
        let problem = self.ground.problem;
        let template = &self.ground.templates[pool];
        let ledger = &self.packed.ledgers.ledger_for(pool);
        let demand = &problem.classes[class].demand[..];
        self.steps += suited.types.len() as u64;
        let fitting: Vec<(TypeIndex, bool)> = suited
            .types
            .iter()
            .filter(|suited| template.shapes[suited.0].can_hold(demand))
            .copied()
            .collect();
        if fitting.is_empty() {
            let miss = missing_resources(problem, template, suited, demand);
            return (RejectionCode::Resources, miss);
        }
        let sold = fitting.iter().filter(|(_, sold)| *sold);
        let sold: Vec<TypeIndex> = sold.map(|(shape, _)| *shape).collect();
        if sold.is_empty() {
            return offering_rejection(self.holds, template, &fitting, &suited.labels);
        }
        let would_do: Vec<TypeIndex> = sold
            .iter()
            .copied()
            .filter(|shape| ledger.allowed_copies(&template.shapes[*shape].limited) > 0)
            .collect();
        if would_do.is_empty() {
            return limit_rejection(template, &sold, ledger);
        }
        let shortage = self.varieties[pool].shortage(template, would_do.iter().copied());
        // Otherwise the pool has supply that was not used.
        shortage.unwrap_or_else(|| self.topology_rejection(class, pool, suited, &would_do))
    }

    /// Returns the topology rules that reject a pod.
    fn topology_rejection(
        &mut self,
        class: PodClassIndex,
        template: TemplateIndex,
        suited: &mut Suited,
        would_do: &[TypeIndex],
    ) -> Rejection {
        let problem = self.ground.problem;
        let kind = problem.without_preferences(problem.classes[class].kind);
        if self.packed.cut_short || self.ground.topology.checks[kind].is_empty() {
            return not_considered();
        }
        let wants = problem.wants_of(kind);
        let row = self.ground.templates[template].compatible_offerings(
            wants,
            &problem.agents,
            &suited.labels,
        );
        let cells = suited.cells.get_or_insert_with(|| {
            let cells = self.ground.cells;
            let restricted = cells.all.keys().filter_map(|cell| {
                let row = cells.restrict_to_domain(template, cell, &row, &suited.labels)?;
                Some((cell, row))
            });
            restricted.collect()
        });
        let cells: Vec<DomainIndex> = cells
            .iter()
            .filter_map(|(cell, row)| {
                let mut types = would_do.iter();
                types.any(|shape| row.masks[*shape] != 0).then_some(*cell)
            })
            .collect();
        self.steps += LABEL_STEPS * cells.len() as u64;
        let is_had = would_do.iter().any(|shape| row.masks[*shape] != 0);
        let (ground, board) = (self.ground, &self.board);
        let places =
            self.places.get_or_insert_with(|| TopologyDiagnosis::new(ground, board.clone()));
        match places.rejection_in(kind, &cells) {
            // Other pods reject this pod, but not in every domain: the remaining domains were not
            // tried.
            Some(RejectionDetail::Places { open, .. })
                if open > 0 && problem.rules_of(kind).is_empty() =>
            {
                not_considered()
            }
            Some(RejectionDetail::Places { open: 0, .. })
                if places
                    .possible_domains(kind)
                    .iter()
                    .any(|cell| cell.map_or(is_had, |cell| cells.contains(&cell))) =>
            {
                let hosts = undecided_nodes(problem, self.rooms);
                let count = hosts.len();
                let hosts = hosts.into_iter().take(HOSTS_TOLD).map(bounded_text).collect();
                let miss = RejectionDetail::Unsettled { count, hosts };
                (RejectionCode::WaitingForInFlightNodes, miss)
            }
            Some(miss) => (RejectionCode::Topology, miss),
            None => not_considered(),
        }
    }
}

/// Returns the rejection of a pod that was not considered within the step limit.
fn not_considered() -> Rejection {
    let text = "the step limit of one pass was reached before this pod was considered";
    RejectionCode::SearchLimit.with_message(text)
}

/// Returns the supply of a pool for pods, independent of resource requests.
fn pool_offer(
    template: &NodeTemplate<'_>,
    wants: &NodeRequirements<'_>,
    alternative: &Requirements,
    agents: &ConstrainedDaemons<'_>,
) -> PoolOffer {
    let labels = match template.admitted_labels(wants, alternative, true) {
        Err(Incompatibility::Taint(taint)) => {
            return Err((RejectionCode::Taint, RejectionDetail::Taint(taint)));
        }
        Err(Incompatibility::Label(no)) => {
            let miss = RejectionDetail::Label(Arc::new(no));
            return Err((RejectionCode::Requirements, miss));
        }
        Ok(labels) => labels,
    };
    if let Some(unusable) = template.unusable() {
        return Err(unusable);
    }
    let asked = type_requirements(&labels);
    let suited = template.shapes.keys();
    let suited: Vec<TypeIndex> =
        suited.filter(|shape| template.shapes[*shape].matches_labels(&asked).is_ok()).collect();
    if suited.is_empty() {
        let miss = unsatisfied_requirement(template, &labels);
        return Err((RejectionCode::Requirements, miss));
    }
    let free: Vec<TypeIndex> = suited
        .iter()
        .filter(|shape| template.has_free_ports(&template.shapes[**shape], wants, agents, &labels))
        .copied()
        .collect();
    if free.is_empty() {
        let types = suited.len();
        return Err((RejectionCode::Resources, RejectionDetail::Ports { types }));
    }
    let (mut types, mut daemons) = (Vec::new(), Vec::new());
    for index in &free {
        let shape = &template.shapes[*index];
        match template.blocking_daemon(shape, wants, agents, &labels) {
            Some(daemon) => daemons.push(daemon),
            None => {
                let mut offers = shape.offers.iter();
                types.push((*index, offers.any(|offer| offering_matches(&labels, offer))));
            }
        }
    }
    if let (true, Some(first)) = (types.is_empty(), daemons.first()) {
        let (types, daemon) = (free.len(), bounded_text(agents.name(*first)));
        let miss = RejectionDetail::Daemon { types, daemon };
        return Err((RejectionCode::Topology, miss));
    }
    Ok(Suited { labels, types, cells: None })
}

/// Returns a label that must not be required, if every alternative of a class requires one. Source:
/// spec/scheduling.md §1.4 (b).
fn restricted_label(problem: &Problem<'_>, class: PodClassIndex) -> Option<String> {
    let wants = problem.wants_of(problem.without_preferences(problem.classes[class].kind));
    let restrictions: Option<Vec<(&str, &str)>> = wants
        .alternatives
        .iter()
        .map(|alternative| {
            let required = alternative.iter();
            let mut required = required.filter(|(_, wanted)| !wanted.allows_absence());
            required.find_map(|(key, _)| match key {
                NODE_NAME => Some((key, "only that node can match")),
                _ => Some((key, label_restriction(key)?)),
            })
        })
        .collect();
    let (key, why) = restrictions?.into_iter().next()?;
    Some(format!("requires the label {key}: {why}"))
}

/// Returns the label requirement that no type of the pool satisfies.
fn unsatisfied_requirement(template: &NodeTemplate<'_>, labels: &Requirements) -> RejectionDetail {
    let types = template.shapes.len();
    for (key, wanted) in labels.iter() {
        let single = type_requirements(&[(key, wanted.clone())].into_iter().collect());
        let mut shapes = template.shapes.iter();
        if !shapes.any(|shape| shape.matches_labels(&single).is_ok()) {
            let (key, wanted) = (Some(bounded_text(key)), bounded_text(wanted));
            return RejectionDetail::Types { key, wanted, types };
        }
    }
    let (key, wanted) = (None, bounded_text(labels));
    RejectionDetail::Types { key, wanted, types }
}

/// Returns the closest type and its missing resources. If types lack only one resource, it is the
/// type with most of that resource; otherwise a type that lacks the fewest resources.
fn missing_resources(
    problem: &Problem<'_>,
    template: &NodeTemplate<'_>,
    suited: &Suited,
    demand: &[i64],
) -> RejectionDetail {
    let nets = suited.types.iter().filter_map(|(shape, _)| {
        let shape = &template.shapes[*shape];
        Some((shape, shape.net.as_deref()?))
    });
    // The order is: fewest missing resources, lowest ordinal of the first missing resource, most of
    // that resource, name.
    let mut best: Option<((usize, usize), &[i64], &TypeOption<'_>)> = None;
    let mut rivals = 0;
    for (shape, net) in nets {
        let axes = demand.iter().zip(net).enumerate();
        let mut missing = axes.filter(|(_, (wanted, left))| wanted > left);
        let first = missing.next().map_or(0, |(axis, _)| axis);
        // Number of missing resources, and the first of them.
        let lack = (1 + missing.count(), first);
        match &best {
            Some((other, ..)) if lack > *other => continue,
            Some((other, ..)) if lack == *other => rivals += 1,
            _ => rivals = 1,
        }
        let others = if lack.0 > 1 { 0 } else { net.len() };
        if best.as_ref().is_none_or(|(other, best_net, _)| {
            lack < *other || (net[lack.1], &net[others..]) > (best_net[lack.1], &best_net[others..])
        }) {
            best = Some((lack, net, shape));
        }
    }
    let net = best.map(|(_, net, _)| net);
    let amounts = demand.iter().enumerate();
    let amounts = amounts.map(|(axis, asked)| (axis, *asked, net.map_or(0, |net| net[axis])));
    RejectionDetail::Resources {
        types: match best {
            Some(((1, _), ..)) => rivals,
            _ => suited.types.len(),
        },
        short: amounts
            .filter(|(_, asked, left)| asked > left)
            .map(|(axis, asked, left)| ResourceShortfall {
                name: bounded_text(problem.axes.resource_name(axis)),
                asked,
                left,
            })
            .collect(),
        nearest: best.map(|(_, _, shape)| shape.instance_type.name.clone()),
    }
}
