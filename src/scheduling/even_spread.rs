//! Pods that are spread over hosts, many to each: all hosts get equal parts of them.
//! It must not know whether that is better than few of them on each of many hosts.
//!
//! A scheduler holds a pod against the emptiest of the hosts that there are. On hosts that open
//! together pods of a group are bound turn by turn, and each host ends with as many as any other.
//! Every host that counts has to have its part, whatever else it is made for: one that is full
//! before keeps all others down to its own number and the skew.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduling::packing::PackedNode;
use crate::scheduling::packing::best_value::ABOUT;
use crate::scheduling::packing::context::{OpenedNode, PackingContext};
use crate::scheduling::packing::fill_bin::{ItemCount, ItemGroup, united};
use crate::scheduling::packing::initial_topology::add_claim;
use crate::scheduling::packing::launch_options::{Ledgers, cheapest, sum};
use crate::scheduling::problem::resource_vector::most;
use crate::scheduling::scheduler::{Scheduler, begin, tiers};
use crate::scheduling::topology::topology_state::TopologyState;
use crate::scheduling::topology::{DomainCounter, TopologyCheck};
use crate::state::snapshot::{ExistingNode, Snapshot};

/// Hosts that a group is kept on at least, if it has as many pods: who asks to be spread over hosts
/// wants to lose little with one of them. Who wants more asks for it (`minDomains`).
const HOSTS_MIN: u64 = 10;

/// Numbers of hosts that are tried for one family.
const TRIES_MAX: usize = 64;

/// Steps of one family, each a type looked at for one host: some nanoseconds. Beyond, no further
/// numbers of hosts are tried.
const STEPS_MAX: u64 = 5_000_000;

/// Pods that are spread over hosts with each other and with nobody else.
#[derive(Debug)]
struct SpreadGroup {
    tally: usize,
    classes: Vec<usize>,
    pods: u64,
    /// New hosts that it needs at least if all get equal parts: by the rules, and as it should be.
    hosts_few: u64,
    hosts_min: u64,
    /// New hosts that it needs if each starts with none and the emptiest stays so.
    hosts_max: u64,
}

/// Groups that want the same of a host, and pods that want that, too, and mind nobody.
#[derive(Debug, Default)]
struct SpreadFamily {
    groups: Vec<SpreadGroup>,
    /// Classes, and which pods of a row they are: of a group, or of those who mind nobody. Each row
    /// is dealt out to hosts one by one.
    dealt: Vec<(usize, u64, u64)>,
}

/// What one number of hosts comes to.
struct NodeCountTrial {
    /// In $/h, nodes counted.
    cost: f64,
    ledgers: Ledgers,
    /// New nodes: pool, type, price, and how many.
    made: Vec<(usize, usize, f64, u64)>,
    /// What becomes of the claims that are there already.
    grown: Vec<PackedNode>,
}

/// Where a family may go.
struct Supply {
    /// For each shelf that has something for it, the first of its lots: one for each class dealt.
    lots: Vec<Option<usize>>,
    /// Shelves of which new nodes are made.
    open: Vec<bool>,
    /// Claims that count as hosts.
    claims: Vec<usize>,
}

/// Packs with equal parts for all hosts; none where there is nobody to gain by that.
pub(super) fn pack<'g, 'p, 'a>(
    ground: &'g PackingContext<'p, 'a>,
    rooms: &'p [&'p ExistingNode],
    snapshot: &Snapshot<'_>,
    board: TopologyState<'p>,
) -> Option<Scheduler<'g, 'p, 'a>> {
    let (mut packer, sites) = begin(ground, rooms, snapshot, board);
    let families = packer.families();
    if families.is_empty() {
        return None;
    }
    // The hosts of all others have to be known.
    let calls = packer.calls.clone();
    for (class, ..) in families.iter().flat_map(|own| &own.dealt) {
        packer.calls[*class] = false;
    }
    packer.open_claims(&sites);
    packer.calls = calls;
    let mut any = false;
    for family in &families {
        any |= packer.level(family);
    }
    any.then(|| {
        packer.finish(&sites);
        packer
    })
}

impl<'p> Scheduler<'_, 'p, '_> {
    /// Whether there are nodes for pods that are spread over hosts which those may have been made
    /// for: nobody on them minds where others are.
    pub(super) fn may_level(&self) -> bool {
        let topology = self.ground.topology;
        let kind = |part: &ItemCount| self.packed.lots[part.0].kind;
        let spread = |part: &ItemCount| topology.spread_alone(kind(part)).is_some();
        let free = |part: &ItemCount| spread(part) || topology.is_free(kind(part));
        let own = |opened: &&OpenedNode| {
            let parts = &opened.claim.parts;
            !opened.gone && parts.iter().any(spread) && parts.iter().all(free)
        };
        self.packed.opened.iter().filter(own).nth(1).is_some()
    }

    /// Whether it places more pods than another or, of as many, for less.
    pub(super) fn is_better_than(&self, other: &Self) -> bool {
        let left = |packer: &Self| packer.packed.left.iter().sum::<u64>();
        let own = left(self).cmp(&left(other));
        own.then(self.cost().total_cmp(&other.cost())).is_lt()
    }

    fn cost(&self) -> f64 {
        let each = self.ground.scheduling.node_price.usd_per_h();
        let claims = self.packed.opened.iter().filter(|opened| !opened.gone);
        claims.map(|opened| opened.claim.price + each).sum()
    }

    /// Groups with pods left that gain by equal parts, those first that count the fewest hosts.
    fn families(&mut self) -> Vec<SpreadFamily> {
        let mut of: BTreeMap<(bool, usize), SpreadFamily> = BTreeMap::new();
        let groups = self.groups();
        let problem = self.ground.problem;
        for group in groups.into_values().flatten() {
            let DomainCounter::Spread { filter, .. } = self.ground.topology.tallies[group.tally]
            else {
                continue;
            };
            let all = self.ground.topology.filters[filter].labels.is_none();
            let kind = self.kinds[group.classes[0]];
            let family = of.entry((all, problem.kinds[kind].wants)).or_default();
            let classes = group.classes.iter().copied();
            family.dealt.extend(self.row(classes));
            family.groups.push(group);
        }
        of.retain(|_, family| family.hosts_min() < family.hosts_max());
        // Each plain pod goes with one family only.
        let mut dealt = vec![false; problem.classes.len()];
        for ((_, wants), family) in &mut of {
            let plain = |class: &usize| {
                let kind = self.kinds[*class];
                let own = &problem.kinds[kind];
                let free = self.ground.topology.is_free(kind) && own.next.is_none();
                free && own.wants == *wants && self.calls[*class] && !dealt[*class]
            };
            let plain: Vec<usize> = (0..problem.classes.len()).filter(plain).collect();
            plain.iter().for_each(|class| dealt[*class] = true);
            family.dealt.extend(self.row(plain.into_iter()));
        }
        of.into_values().collect()
    }

    /// The pods of these classes that are left, in a row.
    fn row(&self, classes: impl Iterator<Item = usize>) -> Vec<(usize, u64, u64)> {
        let mut end = 0;
        let own = classes.map(|class| {
            let first = end;
            end += self.packed.left[class];
            (class, first, end)
        });
        own.filter(|(_, first, end)| first < end).collect()
    }

    /// Groups with pods left, by tally; none where others are counted, too, or are held against it.
    fn groups(&mut self) -> BTreeMap<usize, Option<SpreadGroup>> {
        let (problem, topology) = (self.ground.problem, self.ground.topology);
        let mut wanted: BTreeMap<usize, Option<(usize, u32, u32)>> = BTreeMap::new();
        for (kind, own) in problem.kinds.iter().enumerate() {
            let alone = own.next.is_none() && problem.wants_of(kind).ports.is_empty();
            if let Some((tally, skew, least)) = topology.spread_alone(kind).filter(|_| alone) {
                let known = wanted
                    .entry(tally)
                    .or_insert(Some((own.wants, skew, least)));
                *known = known
                    .filter(|known| known.0 == own.wants)
                    .map(|known| (own.wants, skew.min(known.1), least.max(known.2)));
                continue;
            }
            let checked = topology.checks[kind]
                .iter()
                .filter_map(|check| match check {
                    TopologyCheck::Even { tally, .. } => Some(tally),
                    _ => None,
                });
            for tally in checked.chain(&topology.adds[kind]) {
                wanted.insert(*tally, None);
            }
        }
        // Nor where daemons are counted with them.
        for tally in topology.crews.iter().flatten() {
            wanted.insert(*tally, None);
        }
        let mut groups: BTreeMap<usize, Option<SpreadGroup>> = BTreeMap::new();
        for class in 0..problem.classes.len() {
            let Some((tally, ..)) = topology.spread_alone(self.kinds[class]) else {
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
                    hosts_few: 0,
                    hosts_min: u64::from(least),
                    hosts_max: u64::from(skew),
                })
            });
            if let Some(group) = group.as_mut().filter(|_| pods > 0) {
                group.classes.push(class);
                group.pods += pods;
            }
        }
        for own in groups.values_mut() {
            *own = own.take().filter(|own| own.pods > 0);
            if let Some(group) = own {
                group.count_hosts(&mut self.board);
            }
        }
        groups
    }

    /// Gives all hosts of a family equal parts of it. Says whether that could be done.
    fn level(&mut self, family: &SpreadFamily) -> bool {
        let before = self.packed.lots.len();
        let supply = self.supply(family);
        let claims = supply.claims.len() as u64;
        let mut steps = 0;
        let mut costs: Vec<(u64, f64)> = Vec::new();
        for hosts in family.tries(claims) {
            if steps > STEPS_MAX {
                break;
            }
            let trial = self.trial(family, &supply, (hosts, &mut steps));
            costs.extend(trial.map(|own| (hosts, own.cost)));
        }
        let least = costs.iter().map(|own| own.1).fold(f64::INFINITY, f64::min);
        let best = costs.iter().find(|own| own.1 <= least * ABOUT);
        // Rather on fewer hosts than some nowhere.
        let fewer = (family.hosts_few().max(claims)..family.hosts_min()).rev();
        let hosts = best.map(|own| own.0).into_iter().chain(fewer);
        let mut trials = hosts.filter_map(|hosts| {
            let trial = self.trial(family, &supply, (hosts, &mut steps))?;
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
        for (shelf, shape, price, count) in trial.made {
            for _ in 0..count {
                let parts = family.part(supply.lots[shelf], (host, hosts));
                let claim = PackedNode {
                    shape,
                    price,
                    parts,
                };
                self.packed.opened.push(OpenedNode {
                    shelf,
                    claim,
                    gone: false,
                });
                host += 1;
            }
        }
        self.packed.ledgers = trial.ledgers;
        for (class, first, end) in &family.dealt {
            self.packed.left[*class] -= end - first;
        }
        true
    }

    /// Makes the lots of a family.
    fn supply(&mut self, family: &SpreadFamily) -> Supply {
        let ground = self.ground;
        let wants = ground.problem.kinds[self.kinds[family.dealt[0].0]].wants;
        let alternatives = ground.problem.wants[wants].alternatives.len();
        let mut supply = Supply {
            lots: Vec::new(),
            open: Vec::new(),
            claims: Vec::new(),
        };
        for shelf in 0..ground.shelves.len() {
            let keys = [false, true].into_iter().flat_map(|relaxed| {
                (0..alternatives).map(move |own| (wants, shelf, own, relaxed, None))
            });
            let mut rows = keys.map(|key| (self.market.row(key), key.3));
            let row = rows.find(|own| own.0.is_some());
            let first = row.map(|_| self.packed.lots.len());
            for (class, ..) in family.dealt.iter().filter(|_| first.is_some()) {
                let own = &ground.problem.classes[*class];
                let kind = self.kinds[*class];
                self.packed.lots.push(ItemGroup {
                    class: *class,
                    kind,
                    demand: &own.demand,
                    per_unit: &own.per_unit,
                    shares: &ground.hosts.level[kind],
                    row: row.and_then(|own| own.0).unwrap_or(0),
                    cell: None,
                    together: 1,
                });
            }
            supply.lots.push(first);
            supply.open.push(row.is_some_and(|own| !own.1));
        }
        // Pools that are better left to others are for those who find no other.
        if !supply.open.contains(&true) {
            supply.open = supply.lots.iter().map(Option::is_some).collect();
        }
        let mut board = self.board.clone();
        for (at, opened) in self.packed.opened.iter().enumerate() {
            let known = (&self.packed.lots[..], &self.market.rows[..]);
            let site = add_claim(ground, known, opened, &mut board);
            let counts = |group: &SpreadGroup| match ground.topology.tallies[group.tally] {
                DomainCounter::Spread { filter, .. } => board.sites.passes(filter, site),
                _ => false,
            };
            if !opened.gone && family.groups.iter().any(counts) {
                supply.claims.push(at);
            }
        }
        supply
    }

    /// So many hosts with equal parts of a family, new ones beside those that are there; none where
    /// one of them cannot have its part.
    fn trial(
        &self,
        family: &SpreadFamily,
        supply: &Supply,
        (hosts, steps): (u64, &mut u64),
    ) -> Option<NodeCountTrial> {
        let new = hosts.checked_sub(supply.claims.len() as u64)?;
        let node_price = self.ground.scheduling.node_price.usd_per_h();
        let mut trial = NodeCountTrial {
            cost: 0.0,
            ledgers: self.packed.ledgers.clone(),
            made: Vec::new(),
            grown: Vec::new(),
        };
        self.grow_all(family, supply, (hosts, steps), &mut trial)?;
        let most = self.most(family, supply, (new, hosts));
        let mut left = new;
        while left > 0 {
            let (shelf, shape, price) = self.cheapest(supply, &most, &trial.ledgers, steps)?;
            let limited = &self.ground.shelves[shelf].shapes[shape].limited;
            let mut ledger = trial.ledgers.of(shelf);
            let count = ledger.copies(limited).min(left);
            ledger.reserve(limited, count);
            trial.ledgers.put(shelf, ledger);
            trial.made.push((shelf, shape, price, count));
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 nodes")]
            let nodes = count as f64;
            trial.cost += nodes * (price + node_price);
            left -= count;
        }
        Some(trial)
    }

    /// Adds their parts to the claims that are there; they come after the new hosts.
    fn grow_all(
        &self,
        family: &SpreadFamily,
        supply: &Supply,
        (hosts, steps): (u64, &mut u64),
        trial: &mut NodeCountTrial,
    ) -> Option<()> {
        let node_price = self.ground.scheduling.node_price.usd_per_h();
        let first = hosts - supply.claims.len() as u64;
        let mut last: Option<(usize, PackedNode)> = None;
        for (host, at) in (first..).zip(&supply.claims) {
            let opened = &self.packed.opened[*at];
            let order = self.order(opened.shelf, &[]);
            let mut parts = family.part(supply.lots[opened.shelf], (host, hosts));
            let nobody = family.share((host, hosts)).all(|own| own.1 == 0);
            if parts.is_empty() && !nobody {
                return None;
            }
            parts.extend(&opened.claim.parts);
            let parts = united(parts);
            let shapes = &self.ground.shelves[opened.shelf].shapes;
            let mut ledger = trial.ledgers.of(opened.shelf);
            ledger.release(&shapes[opened.claim.shape].limited);
            let same = last.take().filter(|(shelf, own)| {
                let alike = *shelf == opened.shelf && own.parts == parts;
                alike && ledger.copies(&shapes[own.shape].limited) > 0
            });
            let grown = match same {
                Some((_, own)) => own,
                None => {
                    *steps += shapes.len() as u64;
                    let own = order.priced(parts, &ledger)?;
                    order.holds(&own).then_some(own)?
                }
            };
            ledger.reserve(&shapes[grown.shape].limited, 1);
            trial.ledgers.put(opened.shelf, ledger);
            trial.cost += grown.price + node_price;
            trial.grown.push(grown.clone());
            last = Some((opened.shelf, grown));
        }
        Some(())
    }

    /// The most that any of the new hosts is asked for. All are made for that, so that it is the
    /// same which of them the scheduler gives the odd pods.
    fn most(&self, family: &SpreadFamily, supply: &Supply, (new, hosts): (u64, u64)) -> Vec<i64> {
        let ends = family.dealt.iter();
        // Parts change where a class begins or ends.
        let changes = ends.flat_map(|(_, first, end)| [first % hosts, end % hosts]);
        let changes: BTreeSet<u64> = changes.chain([0]).filter(|host| *host < new).collect();
        // The lots of any shelf ask for the same.
        let first = supply.lots.iter().copied().flatten().next();
        let parts = changes
            .into_iter()
            .map(|host| family.part(first, (host, hosts)));
        let parts = parts.filter(|parts| !parts.is_empty());
        let sums: Vec<Vec<i64>> = parts.map(|own| sum(&self.packed.lots, &own)).collect();
        most(sums.iter())
    }

    /// The cheapest node with so much, of the heaviest pools that have any.
    fn cheapest(
        &self,
        supply: &Supply,
        most: &[i64],
        ledgers: &Ledgers,
        steps: &mut u64,
    ) -> Option<(usize, usize, f64)> {
        tiers(self.ground.shelves).into_iter().find_map(|tier| {
            let nodes = tier
                .filter(|shelf| supply.open[*shelf])
                .filter_map(|shelf| {
                    let own = &self.ground.shelves[shelf];
                    *steps += own.shapes.len() as u64;
                    let row = self.packed.lots[supply.lots[shelf]?].row;
                    let row = &[&self.market.rows[row]];
                    let pool = (own, &self.varieties[shelf]);
                    let (shape, price) = cheapest(pool, row, most, &ledgers.of(shelf))?;
                    Some((shelf, shape, price))
                });
            nodes.min_by(|one, other| one.2.total_cmp(&other.2))
        })
    }
}

impl SpreadGroup {
    /// Works out how many new hosts it needs, from the `minDomains` and skew that stand there.
    fn count_hosts(&mut self, board: &mut TopologyState<'_>) {
        let (least, skew) = (self.hosts_min, self.hosts_max.max(1));
        let (hosts, emptiest) = board.extent(self.tally);
        self.hosts_max = self.pods.div_ceil(skew);
        // A host that could take one more would have taken it.
        let most = if hosts == 0 {
            self.pods
        } else {
            emptiest.saturating_add(skew)
        };
        let few = self.pods.div_ceil(most.max(1)).max(1);
        let asked = |hosts_min: u64| {
            let more = hosts_min.saturating_sub(hosts);
            few.max(more.min(self.hosts_max))
        };
        (self.hosts_few, self.hosts_min) = (asked(least), asked(HOSTS_MIN.max(least)));
    }
}

impl SpreadFamily {
    fn hosts_few(&self) -> u64 {
        let all = self.groups.iter().map(|own| own.hosts_few);
        all.max().unwrap_or(0)
    }

    fn hosts_min(&self) -> u64 {
        let all = self.groups.iter().map(|own| own.hosts_min);
        all.max().unwrap_or(0)
    }

    fn hosts_max(&self) -> u64 {
        let all = self.groups.iter().map(|own| own.hosts_max);
        all.max().unwrap_or(0)
    }

    /// Numbers of hosts to be tried, so many being there already: where a group has one pod less
    /// on its fullest host.
    fn tries(&self, claims: u64) -> impl Iterator<Item = u64> {
        let (least, most) = (self.hosts_min().max(claims), self.hosts_max());
        let mut all: BTreeSet<u64> = BTreeSet::from([least]);
        for group in &self.groups {
            let mut each = group.pods.div_ceil(least.max(1));
            while each > 1 {
                let hosts = group.pods.div_ceil(each);
                all.insert(hosts);
                // The most pods that so few hosts cannot all do with.
                each = (group.pods - 1) / hosts;
            }
        }
        all.retain(|hosts| (least..most).contains(hosts));
        let step = all.len().div_ceil(TRIES_MAX).max(1);
        all.into_iter().step_by(step)
    }

    /// How many pods of each class a host gets of so many.
    fn share(&self, (host, hosts): (u64, u64)) -> impl Iterator<Item = (usize, u64)> {
        let upto = move |pods: u64| pods / hosts + u64::from(pods % hosts > host);
        let own = self.dealt.iter();
        own.map(move |(class, first, end)| (*class, upto(*end) - upto(*first)))
    }

    /// The same by lots, the first of which is this.
    fn part(&self, first: Option<usize>, host: (u64, u64)) -> Vec<ItemCount> {
        let Some(first) = first else {
            return Vec::new();
        };
        let own = (first..).zip(self.share(host));
        let own = own.map(|(lot, (_, pods))| (lot, pods));
        own.filter(|(_, pods)| *pods > 0).collect()
    }
}
