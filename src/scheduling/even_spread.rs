//! Spreads pods over nodes evenly if each node gets many of them.
//!
//! kube-scheduler compares each node with the node that has the fewest matching pods. If nodes
//! become ready together, it binds one pod of a group to each of them, then the next, so all nodes
//! get the same number. Every node of the topology spread must therefore have capacity for this
//! number. A node that is full earlier limits all other nodes to its own number plus the skew.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduling::index::{
    CounterIndex, IndexVec, ItemGroupIndex, OpenedNodeIndex, PodClassIndex, RequirementsIndex,
    RowIndex, TemplateIndex, TypeIndex,
};
use crate::scheduling::packing::PackedNode;
use crate::scheduling::packing::best_value::ABOUT;
use crate::scheduling::packing::context::{OpenedNode, PackingContext};
use crate::scheduling::packing::fill_bin::{ItemCount, ItemGroup, merge_counts};
use crate::scheduling::packing::initial_topology::add_claim;
use crate::scheduling::packing::launch_options::{LaunchQuery, Ledgers, total_requests};
use crate::scheduling::problem::resource_vector::max_per_resource;
use crate::scheduling::scheduler::{Scheduler, place_on_existing, weight_tiers};
use crate::scheduling::topology::DomainCounter;
use crate::scheduling::topology::topology_state::TopologyState;
use crate::state::snapshot::{ExistingNode, Snapshot};

/// Minimum number of nodes for a group with enough pods: users spread pods over nodes so that the
/// failure of one node affects few of them. Users can require more nodes with `minDomains`. See
/// docs/decisions/012-equal-shares-on-hosts.md.
const HOSTS_MIN: u64 = 10;

/// Maximum number of node counts to try for one family.
const TRIES_MAX: usize = 64;

/// Step limit of one family, some nanoseconds each. One step evaluates a type for one node. Beyond
/// this limit, no further node counts are tried.
const STEPS_MAX: u64 = 5_000_000;

/// Pods that topology spread distributes over nodes together, without any other pods.
#[derive(Debug)]
struct SpreadGroup {
    tally: CounterIndex,
    classes: Vec<PodClassIndex>,
    pods: u64,
    /// Minimum number of new nodes for an equal distribution: by the rules, and by [`HOSTS_MIN`].
    min_hosts_by_rules: u64,
    hosts_min: u64,
    /// Number of new nodes needed if all of them start empty and at least one of them remains
    /// empty.
    hosts_max: u64,
}

/// Groups with equal requirements, and pods with these requirements but without topology rules.
#[derive(Debug, Default)]
struct SpreadFamily {
    groups: Vec<SpreadGroup>,
    /// Classes with their range in a group, or among the pods without topology rules. The pods of a
    /// range are distributed over nodes one by one.
    dealt: Vec<(PodClassIndex, u64, u64)>,
}

/// The result for one node count.
struct NodeCountTrial {
    /// Cost in $/h, including the overhead cost of each node.
    cost: f64,
    ledgers: Ledgers,
    /// New nodes: pool, type, price, and how many.
    made: Vec<(TemplateIndex, TypeIndex, f64, u64)>,
    /// The existing claims with their new pods.
    grown: Vec<PackedNode>,
}

/// The supply for a family.
#[derive(Default)]
struct Supply {
    /// For each template with supply, the first of its item groups. A template has one group per
    /// class.
    lots: IndexVec<TemplateIndex, Option<ItemGroupIndex>>,
    /// Templates for new nodes.
    open: IndexVec<TemplateIndex, bool>,
    /// Claims that the topology spreads of the family include.
    claims: Vec<OpenedNodeIndex>,
}

/// Packs the same number of pods onto every node, or returns `None` if no pod would benefit.
pub(super) fn pack_evenly<'g, 'p, 'a>(
    context: &'g PackingContext<'p, 'a>,
    rooms: &'p [&'p ExistingNode],
    snapshot: &Snapshot<'_>,
    board: TopologyState<'p>,
) -> Option<Scheduler<'g, 'p, 'a>> {
    let (mut scheduler, sites) = place_on_existing(context, rooms, snapshot, board);
    let families = scheduler.spread_families();
    if families.is_empty() {
        return None;
    }
    // The nodes of all other pods must be known first.
    let calls = scheduler.calls.clone();
    for (class, ..) in families.iter().flat_map(|family| &family.dealt) {
        scheduler.calls[*class] = false;
    }
    scheduler.open_claims(&sites);
    scheduler.calls = calls;
    let mut any = false;
    for family in &families {
        any |= scheduler.spread_evenly(family);
    }
    any.then(|| {
        scheduler.open_and_check(&sites);
        scheduler
    })
}

impl<'p> Scheduler<'_, 'p, '_> {
    /// Returns whether at least two new nodes have pods with hostname spread and no pods with other
    /// topology rules.
    pub(super) fn may_spread_evenly(&self) -> bool {
        let topology = self.context.topology;
        let mut nodes = self.packed.kept_nodes().filter(|opened| {
            let parts = opened.claim.parts.iter();
            let mut kinds = parts.map(|(lot, _)| self.packed.lots[*lot].kind);
            let is_spread = kinds.clone().any(|kind| topology.only_host_spread(kind).is_some());
            is_spread
                && kinds.all(|kind| {
                    topology.only_host_spread(kind).is_some() || topology.is_unconstrained(kind)
                })
        });
        nodes.nth(1).is_some()
    }

    /// Returns whether this packing schedules more pods than `other`, or the same number at a lower
    /// cost.
    pub(super) fn is_better_than(&self, other: &Self) -> bool {
        let by_left = self.packed.unscheduled_pods().cmp(&other.packed.unscheduled_pods());
        by_left.then(self.cost().total_cmp(&other.cost())).is_lt()
    }

    /// Returns families of groups with unscheduled pods that benefit from an equal distribution.
    fn spread_families(&mut self) -> Vec<SpreadFamily> {
        let mut families: BTreeMap<(bool, RequirementsIndex), SpreadFamily> = BTreeMap::new();
        let groups = self.spread_groups();
        let problem = self.context.problem;
        for group in groups.into_values().flatten() {
            let DomainCounter::Spread { filter, .. } = self.context.topology.tallies[group.tally]
            else {
                continue;
            };
            let counts_all_nodes = self.context.topology.filters[filter].labels.is_none();
            let kind = self.kinds[group.classes[0]];
            let family = families.entry((counts_all_nodes, problem.kinds[kind].wants)).or_default();
            let classes = group.classes.iter().copied();
            family.dealt.extend(self.unscheduled_ranges(classes));
            family.groups.push(group);
        }
        families.retain(|_, family| {
            let hosts_max = family.max_of_groups(|group| group.hosts_max);
            family.max_of_groups(|group| group.hosts_min) < hosts_max
        });
        // Each pod without topology rules belongs to one family only.
        let mut dealt: IndexVec<PodClassIndex, bool> = vec![false; problem.classes.len()].into();
        for ((_, wants), family) in &mut families {
            let plain = problem.classes.keys();
            let plain: Vec<PodClassIndex> = plain
                .filter(|class| {
                    let kind = self.kinds[*class];
                    let pod_kind = &problem.kinds[kind];
                    let free =
                        self.context.topology.is_unconstrained(kind) && pod_kind.next.is_none();
                    free && pod_kind.wants == *wants && self.calls[*class] && !dealt[*class]
                })
                .collect();
            plain.iter().for_each(|class| dealt[*class] = true);
            family.dealt.extend(self.unscheduled_ranges(plain.into_iter()));
        }
        families.into_values().collect()
    }

    /// Returns consecutive ranges of the unscheduled pods of these classes.
    fn unscheduled_ranges(
        &self,
        classes: impl Iterator<Item = PodClassIndex>,
    ) -> Vec<(PodClassIndex, u64, u64)> {
        let mut end = 0;
        let ranges = classes.map(|class| {
            let first = end;
            end += self.packed.left[class];
            (class, first, end)
        });
        ranges.filter(|(_, first, end)| first < end).collect()
    }

    /// Returns groups with unscheduled pods by counter. `None` if the counter also counts or limits
    /// other pods.
    fn spread_groups(&mut self) -> BTreeMap<CounterIndex, Option<SpreadGroup>> {
        let (problem, topology) = (self.context.problem, self.context.topology);
        let mut wanted: BTreeMap<CounterIndex, Option<(RequirementsIndex, u32, u32)>> =
            BTreeMap::new();
        for (kind, pod_kind) in problem.kinds.iter_enumerated() {
            let alone = pod_kind.next.is_none() && problem.wants_of(kind).ports.is_empty();
            if let Some((tally, skew, least)) = topology.only_host_spread(kind).filter(|_| alone) {
                let known = wanted.entry(tally).or_insert(Some((pod_kind.wants, skew, least)));
                *known = known
                    .filter(|known| known.0 == pod_kind.wants)
                    .map(|known| (pod_kind.wants, skew.min(known.1), least.max(known.2)));
                continue;
            }
            let checked = topology.spread_tallies(kind);
            for tally in checked.chain(&topology.adds[kind]) {
                wanted.insert(*tally, None);
            }
        }
        // The same applies if the counter also counts DaemonSet pods.
        for tally in topology.daemon_overheads.iter().flatten() {
            wanted.insert(*tally, None);
        }
        let mut groups: BTreeMap<CounterIndex, Option<SpreadGroup>> = BTreeMap::new();
        for class in problem.classes.keys() {
            let Some((tally, ..)) = topology.only_host_spread(self.kinds[class]) else {
                continue;
            };
            let Some((_, skew, least)) = wanted[&tally].filter(|_| self.calls[class]) else {
                groups.insert(tally, None);
                continue;
            };
            let pods = self.packed.left[class];
            let group = groups.entry(tally).or_insert_with(|| {
                Some(SpreadGroup {
                    tally,
                    classes: Vec::new(),
                    pods: 0,
                    min_hosts_by_rules: 0,
                    hosts_min: u64::from(least),
                    hosts_max: u64::from(skew),
                })
            });
            if let Some(group) = group.as_mut().filter(|_| pods > 0) {
                group.classes.push(class);
                group.pods += pods;
            }
        }
        for group in groups.values_mut() {
            *group = group.take().filter(|group| group.pods > 0);
            if let Some(group) = group {
                group.count_hosts(&mut self.board);
            }
        }
        groups
    }

    /// Distributes the pods of a family equally over all nodes. Returns whether that succeeded.
    fn spread_evenly(&mut self, family: &SpreadFamily) -> bool {
        let before = self.packed.lots.len();
        let supply = self.supply_for(family);
        let claims = supply.claims.len() as u64;
        let mut steps = 0;
        let mut costs: Vec<(u64, f64)> = Vec::new();
        for hosts in family.host_counts(claims) {
            if steps > STEPS_MAX {
                break;
            }
            let trial = self.try_host_count(family, &supply, hosts, &mut steps);
            costs.extend(trial.map(|trial| (hosts, trial.cost)));
        }
        let least = costs.iter().map(|cost| cost.1).fold(f64::INFINITY, f64::min);
        let best = costs.iter().find(|cost| cost.1 <= least * ABOUT);
        // If no node count succeeds, lower counts are tried: fewer nodes are better than
        // unscheduled pods.
        let fewest = family.max_of_groups(|group| group.min_hosts_by_rules).max(claims);
        let fewer = (fewest..family.max_of_groups(|group| group.hosts_min)).rev();
        let hosts = best.map(|cost| cost.0).into_iter().chain(fewer);
        let mut trials = hosts.filter_map(|hosts| {
            let trial = self.try_host_count(family, &supply, hosts, &mut steps)?;
            Some((hosts, trial))
        });
        let Some((hosts, trial)) = trials.next() else {
            self.packed.lots.truncate(before);
            return false;
        };
        for (at, claim) in supply.claims.iter().zip(trial.grown) {
            self.packed.opened[*at].claim = claim;
        }
        let mut host = 0;
        for (template, shape, price, count) in trial.made {
            for _ in 0..count {
                let parts = family.items_of_host(supply.lots[template], host, hosts);
                let claim = PackedNode { shape, price, parts };
                self.packed.opened.push(OpenedNode::new(template, claim));
                host += 1;
            }
        }
        self.packed.ledgers = trial.ledgers;
        for (class, first, end) in &family.dealt {
            self.packed.left[*class] -= end - first;
        }
        true
    }

    /// Creates the item groups of a family.
    fn supply_for(&mut self, family: &SpreadFamily) -> Supply {
        let context = self.context;
        let kind = self.kinds[family.dealt[0].0];
        let mut supply = Supply::default();
        for template in context.templates.keys() {
            let row = [false, true].into_iter().find_map(|relaxed| {
                let query = context.offering_query(kind, relaxed, None);
                let mut rows = (0..context.alternatives_of(kind))
                    .filter_map(|alternative| self.offerings.row_for(template, alternative, query));
                Some((rows.next()?, relaxed))
            });
            let first = row.map(|_| ItemGroupIndex(self.packed.lots.len()));
            for (class, ..) in family.dealt.iter().filter(|_| first.is_some()) {
                let kind = self.kinds[*class];
                self.packed.lots.push(ItemGroup {
                    shares: &context.hosts.level[kind],
                    ..context.item_group(*class, kind, row.map_or(RowIndex(0), |(row, _)| row))
                });
            }
            supply.lots.push(first);
            supply.open.push(row.is_some_and(|(_, relaxed)| !relaxed));
        }
        // If every pool has a `PreferNoSchedule` taint that the pods do not tolerate, these pools
        // are used.
        if !supply.open.contains(&true) {
            supply.open = supply.lots.iter().map(Option::is_some).collect();
        }
        let mut board = self.board.clone();
        for (at, opened) in self.packed.opened.iter_enumerated() {
            let items = self.packed.item_offerings(&self.offerings.rows);
            let site = add_claim(context, items, opened, &mut board);
            let mut groups = family.groups.iter();
            let counts = groups.any(|group| match context.topology.tallies[group.tally] {
                DomainCounter::Spread { filter, .. } => board.sites.may_pass(filter, site),
                _ => false,
            });
            if !opened.gone && counts {
                supply.claims.push(at);
            }
        }
        supply
    }

    /// Evaluates an equal distribution over a number of new nodes and existing claims. Returns
    /// `None` if one of them has too little capacity for its pods.
    fn try_host_count(
        &self,
        family: &SpreadFamily,
        supply: &Supply,
        hosts: u64,
        steps: &mut u64,
    ) -> Option<NodeCountTrial> {
        let new = hosts.checked_sub(supply.claims.len() as u64)?;
        let node_overhead_price = self.context.scheduling.node_overhead_price.usd_per_h();
        let mut trial = NodeCountTrial {
            cost: 0.0,
            ledgers: self.packed.ledgers.clone(),
            made: Vec::new(),
            grown: Vec::new(),
        };
        self.grow_claims(family, supply, hosts, steps, &mut trial)?;
        let most = self.largest_share(family, supply, new, hosts);
        let mut left = new;
        while left > 0 {
            let (template, shape, price) =
                self.cheapest_node(supply, &most, &trial.ledgers, steps)?;
            let limited = &self.context.templates[template].shapes[shape].limited;
            let mut ledger = trial.ledgers.ledger_for(template);
            let count = ledger.allowed_copies(limited).min(left);
            ledger.reserve(limited, count);
            trial.ledgers.set_ledger(template, ledger);
            trial.made.push((template, shape, price, count));
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 nodes")]
            let nodes = count as f64;
            trial.cost += nodes * (price + node_overhead_price);
            left -= count;
        }
        Some(trial)
    }

    /// Adds pods to existing claims, which are numbered after the new nodes.
    fn grow_claims(
        &self,
        family: &SpreadFamily,
        supply: &Supply,
        hosts: u64,
        steps: &mut u64,
        trial: &mut NodeCountTrial,
    ) -> Option<()> {
        let node_overhead_price = self.context.scheduling.node_overhead_price.usd_per_h();
        let first = hosts - supply.claims.len() as u64;
        let stock = IndexVec::default();
        let mut last: Option<(TemplateIndex, PackedNode)> = None;
        for (host, at) in (first..).zip(&supply.claims) {
            let opened = &self.packed.opened[*at];
            let input = self.packing_input(opened.template, &stock);
            let mut parts = family.items_of_host(supply.lots[opened.template], host, hosts);
            let has_share = family.share_of_host(host, hosts).any(|share| share.1 > 0);
            if parts.is_empty() && has_share {
                return None;
            }
            parts.extend(&opened.claim.parts);
            let parts = merge_counts(parts);
            let shapes = &self.context.templates[opened.template].shapes;
            let mut ledger = trial.ledgers.ledger_for(opened.template);
            ledger.release(&shapes[opened.claim.shape].limited);
            let same = last.take().filter(|(template, claim)| {
                let alike = *template == opened.template && claim.parts == parts;
                alike && ledger.allowed_copies(&shapes[claim.shape].limited) > 0
            });
            let grown = match same {
                Some((_, claim)) => claim,
                None => {
                    *steps += shapes.len() as u64;
                    let claim = input.priced_claim(parts, &ledger)?;
                    input.fits_one_host(&claim).then_some(claim)?
                }
            };
            ledger.reserve(&shapes[grown.shape].limited, 1);
            trial.ledgers.set_ledger(opened.template, ledger);
            trial.cost += grown.price + node_overhead_price;
            trial.grown.push(grown.clone());
            last = Some((opened.template, grown));
        }
        Some(())
    }

    /// Returns the largest sum of requests on one new node. All new nodes are sized for them, so
    /// the scheduler may place the remaining pods on any of them.
    fn largest_share(
        &self,
        family: &SpreadFamily,
        supply: &Supply,
        new: u64,
        hosts: u64,
    ) -> Vec<i64> {
        let ends = family.dealt.iter();
        // The pods of adjacent nodes differ only at the first and last node of a class.
        let changes = ends.flat_map(|(_, first, end)| [first % hosts, end % hosts]);
        let changes: BTreeSet<u64> = changes.chain([0]).filter(|host| *host < new).collect();
        // The item groups of all templates have equal requests.
        let first = supply.lots.iter().copied().flatten().next();
        let sums: Vec<Vec<i64>> = changes
            .into_iter()
            .map(|host| family.items_of_host(first, host, hosts))
            .filter(|parts| !parts.is_empty())
            .map(|parts| total_requests(&self.packed.lots, &parts))
            .collect();
        max_per_resource(sums.iter())
    }

    /// Returns the cheapest node with this capacity, of the pools with the highest weight.
    fn cheapest_node(
        &self,
        supply: &Supply,
        most: &[i64],
        ledgers: &Ledgers,
        steps: &mut u64,
    ) -> Option<(TemplateIndex, TypeIndex, f64)> {
        weight_tiers(self.context.templates).into_iter().find_map(|tier| {
            let open = tier.map(TemplateIndex).filter(|template| supply.open[*template]);
            let nodes = open.filter_map(|template| {
                let node_template = &self.context.templates[template];
                *steps += node_template.shapes.len() as u64;
                let row = self.packed.lots[supply.lots[template]?].row;
                let (rows, variety) = ([&self.offerings.rows[row]], &self.varieties[template]);
                let query = LaunchQuery::new(node_template, variety, &rows, most);
                let (shape, price) = query.cheapest_type(&ledgers.ledger_for(template))?;
                Some((template, shape, price))
            });
            nodes.min_by(|one, other| one.2.total_cmp(&other.2))
        })
    }
}

impl SpreadGroup {
    /// Computes the number of new nodes from `minDomains` and the skew.
    fn count_hosts(&mut self, board: &mut TopologyState<'_>) {
        let (least, skew) = (self.hosts_min, self.hosts_max.max(1));
        let (hosts, emptiest) = board.count_and_min(self.tally);
        self.hosts_max = self.pods.div_ceil(skew);
        // The node with the fewest pods is full: otherwise it would have received one of these
        // pods.
        let most = if hosts == 0 { self.pods } else { emptiest.saturating_add(skew) };
        let needed = self.pods.div_ceil(most.max(1)).max(1);
        [self.min_hosts_by_rules, self.hosts_min] =
            [least, HOSTS_MIN.max(least)].map(|hosts_min| {
                let missing = hosts_min.saturating_sub(hosts);
                needed.max(missing.min(self.hosts_max))
            });
    }
}

impl SpreadFamily {
    /// Returns the highest value of `hosts` among the groups.
    fn max_of_groups(&self, hosts: impl Fn(&SpreadGroup) -> u64) -> u64 {
        self.groups.iter().map(hosts).max().unwrap_or(0)
    }

    /// Returns the node counts to try. Each count reduces the number of pods on the fullest node of
    /// a group by one.
    fn host_counts(&self, claims: u64) -> impl Iterator<Item = u64> {
        let least = self.max_of_groups(|group| group.hosts_min).max(claims);
        let most = self.max_of_groups(|group| group.hosts_max);
        let mut host_counts: BTreeSet<u64> = BTreeSet::from([least]);
        for group in &self.groups {
            let mut each = group.pods.div_ceil(least.max(1));
            while each > 1 {
                let hosts = group.pods.div_ceil(each);
                host_counts.insert(hosts);
                // The highest number of pods per node with which this number of nodes does not
                // suffice.
                each = (group.pods - 1) / hosts;
            }
        }
        host_counts.retain(|hosts| (least..most).contains(hosts));
        let step = host_counts.len().div_ceil(TRIES_MAX).max(1);
        host_counts.into_iter().step_by(step)
    }

    /// Returns the number of pods of each class on one of the nodes.
    fn share_of_host(&self, host: u64, hosts: u64) -> impl Iterator<Item = (PodClassIndex, u64)> {
        self.dealt.iter().map(move |(class, first, end)| {
            let pods = dealt_to(host, hosts, *end) - dealt_to(host, hosts, *first);
            (*class, pods)
        })
    }

    /// Returns the pods of a node by item group. The group of the first class is `first`.
    fn items_of_host(
        &self,
        first: Option<ItemGroupIndex>,
        host: u64,
        hosts: u64,
    ) -> Vec<ItemCount> {
        let Some(first) = first else {
            return Vec::new();
        };
        let shares = (first.0..).map(ItemGroupIndex).zip(self.share_of_host(host, hosts));
        let counts = shares.map(|(lot, (_, pods))| (lot, pods));
        counts.filter(|(_, pods)| *pods > 0).collect()
    }
}

/// Returns how many of the first `pods` pods this node gets if the nodes get one pod each,
/// repeatedly.
fn dealt_to(host: u64, hosts: u64, pods: u64) -> u64 {
    pods / hosts + u64::from(pods % hosts > host)
}
