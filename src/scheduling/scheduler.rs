//! Schedules every pod in phases: existing nodes first, then new nodes pool by pool.
//!
//! ```text
//! pods ─► existing ─► for each relaxed preference, and last PreferNoSchedule:
//!          nodes        pods with topology rules ─► domains
//!            │          pools by weight, each alternative of the pods ─► claims
//!            ▼                                                             │
//!         placed                                                           ▼
//!            └────────────────► the order in which all are bound ◄─────────┘   left ─► reasons
//! ```

// Counts the claims of a plan in the topology state, and checks the number of pods.
mod counts;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use jiff::Timestamp;

use crate::model::taint::Effect;
use crate::scheduling::domains::distribute::{DomainDemand, distribute};
use crate::scheduling::index::{
    DomainIndex, DomainLocations, IndexVec, ItemGroupIndex, KindIndex, OpenedNodeIndex,
    PodClassIndex, TemplateIndex,
};
use crate::scheduling::packing::PackingInput;
use crate::scheduling::packing::best_value::{STEPS_MAX, best_packing};
use crate::scheduling::packing::context::{OpenedNode, PackingContext, PackingState};
use crate::scheduling::packing::daemon_counts::sure_daemons;
use crate::scheduling::packing::existing_nodes::ExistingNodes;
use crate::scheduling::packing::fill_bin::FillQueues;
use crate::scheduling::packing::initial_topology::add_cells;
use crate::scheduling::packing::launch_options::Ledgers;
use crate::scheduling::packing::offering_cache::OfferingCache;
use crate::scheduling::problem::Problem;
use crate::scheduling::problem::pod_constraints::HOST;
use crate::scheduling::supply::min_values::{MinValues, template_of};
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::scheduling::topology::TopologyCheck;
use crate::scheduling::topology::topology_state::TopologyState;
use crate::state::snapshot::{ExistingNode, Snapshot};

/// Maximum number of packings per round. At the end of a packing, claims are moved to smaller
/// types, which may release limits for the remaining pods.
const DRAFTS_MAX: usize = 8;

/// Returns the node templates of a snapshot: pools for pods, by weight, then name.
pub(super) fn node_templates<'a>(
    problem: &Problem<'_>,
    snapshot: &Snapshot<'a>,
    now: Timestamp,
) -> IndexVec<TemplateIndex, NodeTemplate<'a>> {
    let pools = snapshot.cluster.pools.iter();
    let mut pools: Vec<_> = pools.filter(|pool| pool.replicas.is_none()).collect();
    pools.sort_by_key(|pool| (!pool.weight, &pool.name));
    let templates = pools.into_iter().map(|pool| template_of(pool, problem, snapshot, now));
    templates.collect()
}

/// Packs all classes. `board` contains the nodes, in order, and the pods on them.
pub(super) fn pack_all<'g, 'p, 'a>(
    context: &'g PackingContext<'p, 'a>,
    rooms: &'p [&'p ExistingNode],
    snapshot: &Snapshot<'_>,
    board: TopologyState<'p>,
) -> Scheduler<'g, 'p, 'a> {
    let (mut scheduler, sites) = place_on_existing(context, rooms, snapshot, board);
    scheduler.open_and_check(&sites);
    scheduler
}

/// Places pods on existing nodes only. The result contains the locations of the topology domains.
pub(super) fn place_on_existing<'g, 'p, 'a>(
    context: &'g PackingContext<'p, 'a>,
    rooms: &'p [&'p ExistingNode],
    snapshot: &Snapshot<'_>,
    board: TopologyState<'p>,
) -> (Scheduler<'g, 'p, 'a>, DomainLocations) {
    let problem = context.problem;
    let cutoff = snapshot.cluster.scheduling.priority_cutoff;
    let mut scheduler = Scheduler {
        context,
        rooms: ExistingNodes::new(problem, rooms),
        offerings: OfferingCache::new(context),
        kinds: problem.classes.iter().map(|class| class.kind).collect(),
        board,
        counted: 0,
        known_sites: 0,
        is_whole: true,
        calls: problem
            .classes
            .iter()
            .map(|class| cutoff.is_none_or(|least| class.priority >= least))
            .collect(),
        varieties: context
            .templates
            .iter()
            .map(|template| MinValues::from_template(template, context.scheduling.min_values))
            .collect(),
        packed: PackingState {
            ledgers: Ledgers::new(context.templates, snapshot),
            templates: context.templates,
            placed: Vec::new(),
            dealt: Vec::new(),
            rooms: rooms.len(),
            opened: IndexVec::default(),
            lots: IndexVec::default(),
            left: IndexVec::default(),
            cut_short: false,
        },
    };
    let sites = add_cells(problem, context.cells, &mut scheduler.board);
    scheduler.open_cells(&sites);
    let placed = scheduler.rooms.place_pods(&mut scheduler.board);
    scheduler.packed.placed = placed.turns;
    scheduler.packed.left = placed.left;
    scheduler.packed.cut_short = placed.cut_short;
    (scheduler, sites)
}

/// Pending pods of a class, with their domain if they need one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PendingPods {
    class: PodClassIndex,
    cell: Option<DomainIndex>,
    pods: u64,
}

/// Maximum number of pools of one weight, and maximum number of pods, for which packing all pods
/// onto one pool is tried.
const RIVALS_MAX: usize = 4;
const CONTESTED_MAX: u64 = 2_000;

/// Groups pools by weight, highest first.
pub(super) fn weight_tiers(templates: &[NodeTemplate<'_>]) -> Vec<Range<usize>> {
    let alike = templates.chunk_by(|one, other| one.pool.weight == other.pool.weight);
    let mut from = 0;
    alike
        .map(|tier| {
            from += tier.len();
            from - tier.len()..from
        })
        .collect()
}

/// A packing that is not complete yet.
#[derive(Clone)]
pub(super) struct Scheduler<'g, 'p, 'a> {
    pub(super) context: &'g PackingContext<'p, 'a>,
    /// The result.
    pub(super) packed: PackingState<'p, 'a>,
    pub(super) rooms: ExistingNodes<'p>,
    pub(super) offerings: OfferingCache<'g, 'p, 'a>,
    /// The current kind of every class after relaxing preferences.
    pub(super) kinds: IndexVec<PodClassIndex, KindIndex>,
    pub(super) board: TopologyState<'p>,
    /// Number of claims in the topology state.
    pub(super) counted: usize,
    /// Number of claims whose locations follow those of the nodes; [`Self::retry_unscheduled`] sets
    /// it.
    pub(super) known_sites: usize,
    /// Whether pods that must be on the same node are packed completely or not at all.
    pub(super) is_whole: bool,
    /// Whether a node may be launched for pods of a class.
    pub(super) calls: IndexVec<PodClassIndex, bool>,
    /// The `min_values` of each pool.
    pub(super) varieties: IndexVec<TemplateIndex, MinValues<'p>>,
}

impl<'p, 'a> Scheduler<'_, 'p, 'a> {
    /// Includes domains in topology spreads if a node for the spread pods may be launched in them.
    pub(super) fn open_cells(&mut self, sites: &DomainLocations) {
        let context = self.context;
        for (kind, pod_kind) in context.problem.kinds.iter_enumerated() {
            for tally in context.topology.spread_tallies(kind) {
                for cell in self.offerings.domains_with_offerings(pod_kind.wants, true) {
                    self.board.open_for(*tally, sites[cell]);
                }
            }
        }
    }

    /// Adds claims for all pending pods.
    pub(super) fn open_and_check(&mut self, sites: &DomainLocations) {
        self.open_claims(sites);
        self.drop_unvaried();
        self.check_counts();
    }

    /// Adds claims for pending pods, relaxing preferences one by one.
    pub(super) fn open_claims(&mut self, sites: &DomainLocations) {
        let mut templates = self.context.templates.iter();
        let has_soft_taints = templates.any(|template| {
            let mut taints = template.pool.taints.iter();
            taints.any(|taint| taint.effect == Effect::PreferNoSchedule)
        });
        let classes = self.calls.keys();
        let classes: Vec<PodClassIndex> = classes.filter(|class| self.calls[*class]).collect();
        self.run_rounds(classes.clone(), sites, false);
        if has_soft_taints {
            self.relax_preferences(&classes);
            self.run_rounds(classes, sites, true);
        }
    }

    /// Relaxes all preferences of these classes except `PreferNoSchedule`.
    pub(super) fn relax_preferences(&mut self, classes: &[PodClassIndex]) {
        for class in classes {
            self.kinds[*class] = self.context.hard_kind(*class);
        }
    }

    /// Schedules these classes with their current preferences. Classes with unscheduled pods are
    /// scheduled again with fewer preferences.
    pub(super) fn run_rounds(
        &mut self,
        mut classes: Vec<PodClassIndex>,
        sites: &DomainLocations,
        relaxed: bool,
    ) {
        classes.retain(|class| self.packed.left[*class] > 0);
        while !classes.is_empty() && !self.packed.cut_short {
            self.run_round(&classes, sites, relaxed);
            classes.retain(|class| self.packed.left[*class] > 0);
            classes.retain(|class| {
                let next = self.context.problem.kinds[self.kinds[*class]].next;
                self.kinds[*class] = next.unwrap_or(self.kinds[*class]);
                next.is_some()
            });
        }
    }

    /// Returns the input of [`distribute`] for a class: the number of pending pods, and the domains
    /// with supply.
    fn domain_demand(&mut self, class: PodClassIndex, relaxed: bool) -> DomainDemand {
        let context = self.context;
        let kind = self.kinds[class];
        let wants = context.problem.kinds[kind].wants;
        let demand = &context.problem.classes[class].demand;
        let mut cells = Vec::new();
        for cell in self.offerings.domains_with_offerings(wants, relaxed) {
            let query = context.offering_query(kind, relaxed, Some(cell));
            let price = self.offerings.lowest_price(query, demand, &self.packed.ledgers);
            cells
                .extend(price.map(|price| (cell, price, context.cells.shared_domain_counts[cell])));
        }
        let counts_daemons = self.needs_own_host(kind);
        let cells_with_daemons = cells.iter().filter(|_| counts_daemons);
        let daemon_overheads =
            cells_with_daemons.map(|(cell, ..)| sure_daemons(context, *cell).to_vec());
        DomainDemand {
            class,
            kind,
            pods: self.packed.left[class],
            daemon_overheads: daemon_overheads.collect(),
            cells,
        }
    }

    /// Returns whether each pod of a kind needs its own node, and topology rules count DaemonSet
    /// pods.
    fn needs_own_host(&self, kind: KindIndex) -> bool {
        let context = self.context;
        let shares = &context.hosts.shares[kind];
        context.topology.counts_daemons()
            && shares.remaining_pods(&vec![0; context.hosts.counters], 2) < 2
    }

    /// Runs one round for these classes with their current preferences.
    fn run_round(&mut self, classes: &[PodClassIndex], sites: &DomainLocations, relaxed: bool) {
        self.count_claims();
        self.offerings.set_limits(&self.packed.ledgers);
        let context = self.context;
        let mut waiting: Vec<PendingPods> = Vec::new();
        let mut demands = Vec::new();
        for class in classes.iter().copied() {
            let (pods, cell) = (self.packed.left[class], None);
            if pods > 0 && context.needs_domain(self.kinds[class]) {
                demands.push(self.domain_demand(class, relaxed));
            } else if pods > 0 {
                waiting.push(PendingPods { class, cell, pods });
            }
        }
        // Spread pods come first, then pods with required affinity.
        demands.sort_by_key(|demand| {
            let has_affinity = !context.problem.rules_of(demand.kind).near.is_empty();
            (has_affinity, !context.topology.has_spread(demand.kind))
        });
        let mut board = self.board.clone();
        let shares = distribute(&demands, &mut board, sites);
        let mut pods_by_domain: BTreeMap<(PodClassIndex, DomainIndex), u64> = BTreeMap::new();
        for share in &shares {
            *pods_by_domain.entry((share.class, share.cell)).or_insert(0) += share.pods;
        }
        let mut placed_in_domains: BTreeMap<PodClassIndex, u64> = BTreeMap::new();
        for ((class, cell), pods) in pods_by_domain {
            let cell = Some(cell);
            waiting.push(PendingPods { class, cell, pods });
            *placed_in_domains.entry(class).or_insert(0) += pods;
        }
        self.packed.dealt.extend(shares);
        waiting.sort_unstable();
        let alternatives = classes
            .iter()
            .map(|class| context.alternatives_of(self.kinds[*class]))
            .max()
            .unwrap_or(0);
        for tier in weight_tiers(context.templates) {
            self.choose_between_pools(&mut waiting, tier, alternatives, relaxed);
        }
        let mut unscheduled: BTreeMap<PodClassIndex, u64> = BTreeMap::new();
        for pending in waiting {
            *unscheduled.entry(pending.class).or_insert(0) += pending.pods;
        }
        // Pods without a domain remain pending.
        for demand in &demands {
            let placed = placed_in_domains.get(&demand.class).copied().unwrap_or(0);
            *unscheduled.entry(demand.class).or_insert(0) += demand.pods - placed;
        }
        for class in classes {
            self.packed.left[*class] = unscheduled.get(class).copied().unwrap_or(0);
        }
    }

    /// Schedules pods on pools of one weight: each on its cheapest pool, or a small number of pods
    /// all on one pool if that is cheaper.
    fn choose_between_pools(
        &mut self,
        waiting: &mut Vec<PendingPods>,
        tier: Range<usize>,
        alternatives: usize,
        relaxed: bool,
    ) {
        let ranked: Vec<Vec<TemplateIndex>> = waiting
            .iter()
            .map(|pending| self.ranked_pools(*pending, tier.clone(), relaxed))
            .collect();
        let mut pairs = waiting.iter().zip(&ranked);
        let contested = pairs.any(|(pending, pools)| pools.len() > 1 && pending.pods > 0);
        let pods: u64 = waiting.iter().map(|pending| pending.pods).sum();
        if !contested || tier.len() > RIVALS_MAX || pods > CONTESTED_MAX {
            self.open_nodes(waiting, &ranked, alternatives, relaxed);
            return;
        }
        let before = self.packed.clone();
        let mut best: Option<((u64, f64), PackingState<'p, 'a>, Vec<PendingPods>)> = None;
        let mut tried_orders: Vec<Vec<Vec<TemplateIndex>>> = Vec::new();
        for first in std::iter::once(None).chain(tier.map(TemplateIndex).map(Some)) {
            let mut ranked = ranked.clone();
            for pools in &mut ranked {
                pools.sort_by_key(|pool| Some(*pool) != first);
            }
            if tried_orders.contains(&ranked) {
                continue;
            }
            self.packed.clone_from(&before);
            let mut candidate = waiting.clone();
            self.open_nodes(&mut candidate, &ranked, alternatives, relaxed);
            let unscheduled: u64 = candidate.iter().map(|pending| pending.pods).sum();
            let cost = self.cost();
            if best.as_ref().is_none_or(|((least, least_cost), ..)| {
                unscheduled < *least || unscheduled == *least && cost < *least_cost
            }) {
                best = Some(((unscheduled, cost), self.packed.clone(), candidate));
            }
            tried_orders.push(ranked);
        }
        if let Some((_, packed, candidate)) = best {
            (self.packed, *waiting) = (packed, candidate);
        }
    }

    /// Returns the pools of one weight with supply for pending pods, cheapest first.
    fn ranked_pools(
        &mut self,
        pending: PendingPods,
        tier: Range<usize>,
        relaxed: bool,
    ) -> Vec<TemplateIndex> {
        let PendingPods { class, cell, pods } = pending;
        let query = self.context.offering_query(self.kinds[class], relaxed, cell);
        let pools_with_offerings = tier
            .map(TemplateIndex)
            .filter(|template| self.offerings.has_offering(*template, query));
        let pools_with_offerings: Vec<TemplateIndex> = pools_with_offerings.collect();
        if pools_with_offerings.len() < 2 {
            return pools_with_offerings;
        }
        let demand = &self.context.problem.classes[class].demand;
        let mut priced = Vec::with_capacity(pools_with_offerings.len());
        for template in pools_with_offerings {
            let ledger = self.packed.ledgers.ledger_for(template);
            let cost_per_pod =
                self.offerings.lowest_cost_per_pod(template, query, demand, pods, &ledger);
            priced.push((cost_per_pod.unwrap_or(f64::INFINITY), template));
        }
        priced.sort_by(|one, other| one.0.total_cmp(&other.0));
        priced.into_iter().map(|(_, template)| template).collect()
    }

    /// Adds claims for pending pods. Pods use their pools in the given order.
    fn open_nodes(
        &mut self,
        waiting: &mut [PendingPods],
        ranked: &[Vec<TemplateIndex>],
        alternatives: usize,
        relaxed: bool,
    ) {
        let ranks = ranked.iter().map(Vec::len).max().unwrap_or(0);
        for rank in 0..ranks {
            let pool_of = ranked.iter().map(|pools| pools.get(rank).copied());
            let pool_of: Vec<Option<TemplateIndex>> = pool_of.collect();
            let templates: BTreeSet<TemplateIndex> = pool_of.iter().flatten().copied().collect();
            for template in templates {
                for alternative in 0..alternatives {
                    self.open_round(waiting, &pool_of, template, alternative, relaxed);
                }
            }
        }
    }

    /// Runs one round with one pool and one alternative of every kind. Packed pods are subtracted
    /// from the pending ones.
    fn open_round(
        &mut self,
        waiting: &mut [PendingPods],
        pool_of: &[Option<TemplateIndex>],
        template: TemplateIndex,
        alternative: usize,
        relaxed: bool,
    ) {
        let context = self.context;
        let first = self.packed.lots.len();
        let mut pending_index = Vec::new();
        for (at, pending) in waiting.iter().copied().enumerate() {
            let PendingPods { class, cell, pods } = pending;
            if pool_of[at] != Some(template) || pods == 0 {
                continue;
            }
            let kind = self.kinds[class];
            let query = context.offering_query(kind, relaxed, cell);
            let Some(row) = self.offerings.row_of_kind(kind, template, alternative, query) else {
                continue;
            };
            let mut group = context.item_group(class, kind, row);
            group.cell = cell;
            if self.is_whole && group.shares.is_self_affine() {
                group.together = pods;
            }
            self.packed.lots.push(group);
            pending_index.push(at);
        }
        if pending_index.is_empty() {
            return;
        }
        let mut stock: IndexVec<ItemGroupIndex, u64> = vec![0; first].into();
        stock.extend(pending_index.iter().map(|at| waiting[*at].pods));
        self.pack_lots(&mut stock, template);
        for (at, unscheduled) in pending_index.iter().zip(stock.iter().skip(first)) {
            waiting[*at].pods = *unscheduled;
        }
    }

    /// Packs item groups onto claims of a template, existing claims first.
    fn pack_lots(&mut self, stock: &mut IndexVec<ItemGroupIndex, u64>, template: TemplateIndex) {
        let mut steps = 0;
        let waiting: Vec<ItemGroupIndex> = stock.keys().filter(|group| stock[*group] > 0).collect();
        let all_queues = FillQueues::from_lots(waiting.iter().copied());
        for at in self.packed.opened.keys() {
            let opened = &self.packed.opened[at];
            if opened.template != template || opened.gone || steps > STEPS_MAX {
                continue;
            }
            let mut allowed_queues = None;
            if !waiting.iter().all(|group| self.may_top_up(*group, at)) {
                let groups = waiting.iter().copied();
                allowed_queues =
                    Some(FillQueues::from_lots(groups.filter(|group| self.may_top_up(*group, at))));
            }
            let queues = allowed_queues.as_ref().unwrap_or(&all_queues);
            let input = self.packing_input(template, stock);
            let added = input.top_up(&opened.claim, queues, &mut steps);
            for (group, count) in &added {
                stock[*group] -= count;
            }
            self.packed.opened[at].claim.parts.extend(added);
        }
        for _ in 0..DRAFTS_MAX {
            let input = self.packing_input(template, stock);
            let mut draft = best_packing(&input, &self.packed.ledgers.ledger_for(template));
            input.split_unvaried(&mut draft);
            if draft.claims.is_empty() {
                break;
            }
            let claims = draft.claims.into_iter();
            let nodes = claims.map(|claim| OpenedNode::new(template, claim));
            self.packed.opened.extend(nodes);
            self.packed.ledgers.set_ledger(template, draft.ledger);
            *stock = draft.left;
            self.packed.cut_short |= draft.cut_short;
        }
    }

    /// Returns whether hostname spread allows items on a claim, as far as the location of the claim
    /// is known. With fewer nodes than `minDomains`, the items need an additional node.
    fn may_top_up(&self, group: ItemGroupIndex, at: OpenedNodeIndex) -> bool {
        if at.0 >= self.known_sites {
            return true;
        }
        let (topology, site) = (self.context.topology, self.packed.location_of(at));
        let mut checks = topology.checks[self.packed.lots[group].kind].iter();
        checks.all(|check| match check {
            TopologyCheck::Even { tally, .. } if topology.key_of(*tally) == HOST => {
                self.board.may_hold(check, site)
            }
            _ => true,
        })
    }

    /// Returns the cost of the new nodes in $/h.
    pub(super) fn cost(&self) -> f64 {
        let each = self.context.scheduling.node_overhead_price.usd_per_h();
        let nodes = self.packed.kept_nodes();
        nodes.map(|opened| opened.claim.price + each).sum()
    }

    pub(super) fn packing_input<'o>(
        &'o self,
        template: TemplateIndex,
        stock: &'o IndexVec<ItemGroupIndex, u64>,
    ) -> PackingInput<'o> {
        PackingInput {
            lots: &self.packed.lots,
            template: &self.context.templates[template],
            variety: &self.varieties[template],
            rows: &self.offerings.rows,
            stock,
            counters: self.context.hosts.counters,
            node_overhead_price: self.context.scheduling.node_overhead_price.usd_per_h(),
            node_cost: self.context.scheduling.node_overhead_price.usd_per_h(),
        }
    }
}
