//! Applies node classes and overlays to the catalog of a pool.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::catalog::node_class::Classes;
use crate::catalog::{Catalog, instance_type};
use crate::model::cluster::Cluster;
use crate::model::id::PoolName;
use crate::model::instance::InstanceType;
use crate::model::labels::{NODE_CLASS, POOL};
use crate::model::overlay::Overlay;
use crate::model::pool::Pool;
use crate::model::requirement::{Requirement, Requirements};

/// Prefix of huge page resources. Memory of huge pages is not available to other uses.
const HUGE_PAGES: &str = "hugepages-";

/// Catalogs of the pools of a cluster that differ from the plain catalog because of node classes or
/// overlays. They are created again if the configuration, the catalog or a class changes. Lookups
/// are cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolCatalogs {
    by_pool: BTreeMap<PoolName, Arc<Catalog>>,
    faults: BTreeMap<PoolName, String>,
}

impl PoolCatalogs {
    /// Applies the overlays of a cluster to this catalog.
    pub fn new(plain: &Catalog, cluster: &Cluster) -> Self {
        let different = cluster.pools.iter().filter_map(|pool| {
            match with_overlays(plain, &cluster.overlays, pool) {
                Cow::Borrowed(_) => None,
                Cow::Owned(catalog) => Some((pool.name.clone(), Arc::new(catalog))),
            }
        });
        Self { by_pool: different.collect(), faults: BTreeMap::new() }
    }

    /// Applies node classes, then overlays. Pools whose catalog equals `current` are not stored.
    pub fn from_classes(
        plain: &Arc<Catalog>,
        current: &Arc<Catalog>,
        cluster: &Cluster,
        classes: &Classes,
    ) -> Self {
        let mut all = Self::default();
        for pool in &cluster.pools {
            let class = pool.node_class.as_ref();
            let base = class.and_then(|class| classes.catalog_of(class)).unwrap_or(plain);
            let catalog = match with_overlays(base, &cluster.overlays, pool) {
                Cow::Borrowed(_) if Arc::ptr_eq(base, current) || base == current => None,
                Cow::Borrowed(_) => Some(Arc::clone(base)),
                Cow::Owned(catalog) => Some(Arc::new(catalog)),
            };
            let name = &pool.name;
            all.by_pool.extend(catalog.map(|catalog| (name.clone(), catalog)));
            let fault = class.and_then(|class| classes.launch_fault(class));
            all.faults.extend(fault.map(|fault| (name.clone(), fault)));
        }
        all
    }

    /// The catalog of a pool. `None` if it is the plain catalog, or if the pool does not exist.
    pub fn get(&self, pool: &str) -> Option<&Catalog> {
        self.by_pool.get(pool).map(Arc::as_ref)
    }

    /// Reason why a pool cannot launch nodes.
    pub fn launch_fault(&self, pool: &str) -> Option<&str> {
        self.faults.get(pool).map(String::as_str)
    }
}

/// Applies overlays in order to the catalog of a pool. Unchanged types are shared.
///
/// An overlay changes price and capacity independently. The first overlay that sets the price of an
/// offering, or a resource of a type, takes precedence. Adjustments always apply to the price in
/// the catalog. It is no error if two overlays with the same weight change the same offering: their
/// order decides, for this offering only. Karpenter drops one of the two completely, so a new
/// instance type can disable an unrelated overlay. Source: spec/scheduling.md §3.4.
pub fn with_overlays<'a>(
    catalog: &'a Catalog,
    overlays: &[Overlay],
    pool: &Pool,
) -> Cow<'a, Catalog> {
    let mut labels = Requirements::from_labels(&pool.labels);
    labels.add(POOL, Requirement::is_in([pool.name.as_str()]));
    if let Some(class) = &pool.node_class {
        labels.add(NODE_CLASS, Requirement::is_in([class.as_str()]));
    }
    let types = catalog.types();
    let changed: Vec<InstanceType> =
        types.filter_map(|it| overlaid_type(it, overlays, &labels)).collect();
    if changed.is_empty() {
        return Cow::Borrowed(catalog);
    }
    Cow::Owned(catalog.with(changed))
}

/// Returns the type with overlays applied. `None` if they do not change it.
fn overlaid_type(
    plain: &InstanceType,
    overlays: &[Overlay],
    labels: &Requirements,
) -> Option<InstanceType> {
    let mut copy: Option<InstanceType> = None;
    let mut priced = vec![false; plain.offerings.len()];
    let mut amounts: BTreeSet<&str> = BTreeSet::new();
    for overlay in overlays {
        if !overlay.covers_type(labels, &plain.requirements) {
            continue;
        }
        let covered: Vec<usize> = (0..plain.offerings.len())
            .filter(|place| overlay.covers_offering(&plain.offerings[*place]))
            .collect();
        if covered.is_empty() {
            continue;
        }
        let instance_type = copy.get_or_insert_with(|| plain.clone());
        if let Some(adjustment) = overlay.price {
            for place in covered {
                if !std::mem::replace(&mut priced[place], true) {
                    let price = &mut instance_type.offerings[place].price;
                    *price = adjustment.apply(*price);
                }
            }
        }
        for (name, amount) in &overlay.capacity {
            if amounts.insert(name) {
                set_capacity(instance_type, name, *amount);
            }
        }
    }
    let mut instance_type = copy?;
    instance_type::sort_offerings(&mut instance_type.offerings);
    (instance_type != *plain).then_some(instance_type)
}

/// Sets a resource of the allocatable capacity and keeps the reservations. Huge pages are
/// subtracted from the memory available to pods.
fn set_capacity(instance_type: &mut InstanceType, name: &str, amount: i64) {
    let before = instance_type.capacity.get(name);
    let reserved = before - instance_type.allocatable.get(name);
    let allocatable = amount.saturating_sub(reserved).max(0);
    for (side, amount) in
        [(&mut instance_type.capacity, amount), (&mut instance_type.allocatable, allocatable)]
    {
        match amount {
            0 => drop(side.extended.remove(name)),
            _ => drop(side.extended.insert(name.to_owned(), amount)),
        }
    }
    if name.starts_with(HUGE_PAGES) {
        let added = amount.saturating_sub(before);
        let memory = instance_type.allocatable.memory.saturating_sub(added);
        instance_type.allocatable.memory = memory.clamp(0, instance_type.capacity.memory);
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::{PoolCatalogs, with_overlays};
    use crate::catalog::{Catalog, csv};
    use crate::model::cluster::Cluster;
    use crate::model::id::NodeClassName;
    use crate::model::instance::{InstanceType, Price};
    use crate::model::overlay::{Overlay, PriceAdjustment};
    use crate::model::pool::Pool;
    use crate::model::requirement::{Requirement, Requirements};

    const GIB: i64 = 1 << 30;

    /// Two types in zones eu-a and eu-b: 1 and 2 dollars on demand, 0.35 and 0.7 as spot.
    const TYPES: &str = "\
type,arch,vcpu,memory_mib,cpu_manufacturer,hypervisor,bare_metal,current_generation,spot,enis,\
ips_per_eni,network_cards,efa_max,trunking,branch_enis,network_mbps,ebs_mbps,nvme_gb,\
encryption_in_transit,gpu_name,gpu_manufacturer,gpu_count,gpu_memory_mib,accelerator_name,\
accelerator_manufacturer,accelerator_count,neuron_devices,neuron_cores,on_demand_usd_per_h,zones
m7i.large,x86_64,2,8192,Intel,nitro,0,1,1,3,10,1,0,0,0,750,4750,,0,,,,,,,,,,1.0,ab
g5.large,x86_64,2,16384,AMD,nitro,0,1,1,3,10,1,0,0,0,750,4750,,0,A10G,NVIDIA,1,22888,,,,,,2.0,ab
";

    fn catalog() -> Catalog {
        csv::parse_csv(TYPES, "eu-").expect("a catalog")
    }

    fn pool() -> Pool {
        Pool {
            node_class: Some(NodeClassName::from("al2023")),
            labels: [("team".to_owned(), "ml".to_owned())].into(),
            ..Pool::new("gpu")
        }
    }

    /// Parses an overlay: `name weight`, requirements `key=a,b` and `key!=a,b`, and the change.
    fn overlay(text: &str) -> Overlay {
        let mut parsed = Overlay::default();
        let mut words = text.split(' ');
        parsed.name = words.next().expect("a name").to_owned();
        parsed.weight = words.next().expect("a weight").parse().expect("a weight");
        let mut requirements = Requirements::default();
        let key = |name: &str| match name {
            "type" => "node.kubernetes.io/instance-type".to_owned(),
            "zone" => "topology.kubernetes.io/zone".to_owned(),
            "buy" => "karpenter.sh/capacity-type".to_owned(),
            "pool" => "karpenter.sh/nodepool".to_owned(),
            "class" => "karpenter.k8s.aws/ec2nodeclass".to_owned(),
            "team" => "team".to_owned(),
            aws => format!("karpenter.k8s.aws/instance-{aws}"),
        };
        for word in words {
            if let Some((resource, amount)) = word.split_once(':') {
                let amount = amount.parse().expect("an amount");
                parsed.capacity.insert(resource.to_owned(), amount);
            } else if let Some((name, values)) = word.split_once("!=") {
                requirements.add(&key(name), Requirement::not_in(values.split(',')));
            } else if let Some((name, values)) = word.split_once('=') {
                requirements.add(&key(name), Requirement::is_in(values.split(',')));
            } else if word.starts_with(['+', '-']) {
                parsed.price = PriceAdjustment::parse(word).ok();
                assert!(parsed.price.is_some(), "{word}");
            } else {
                let price = Price::new(word.parse().expect("a price")).expect("a price");
                parsed.price = Some(PriceAdjustment::Absolute(price));
            }
        }
        Overlay { requirements, ..parsed }
    }

    fn ordered(texts: &[&str]) -> Vec<Overlay> {
        let mut all: Vec<Overlay> = texts.iter().map(|text| overlay(text)).collect();
        all.sort_by(Overlay::application_order);
        all
    }

    fn prices(it: &InstanceType) -> String {
        let price_of = |zone: &str, capacity_type: &str| {
            let offerings = it.offerings.iter();
            let mut offerings = offerings.filter(|it| {
                it.zone.as_str() == zone && it.capacity_type.as_str() == capacity_type
            });
            offerings.next().expect("an offering").price.usd_per_h().to_string()
        };
        let all = ["eu-a", "eu-b"]
            .map(|zone| [price_of(zone, "on-demand"), price_of(zone, "spot")].join("/"));
        all.join(" ")
    }

    /// Overlays, and the resulting prices of m7i.large and g5.large, on demand and as spot, in both
    /// zones. The rules of spec/scheduling.md §3.4.
    #[test]
    fn overlays_adjust_prices() {
        let (m7i, g5) = ("1/0.35 1/0.35", "2/0.7 2/0.7");
        let rows: [(&[&str], &str, &str); 22] = [
            (&[], m7i, g5),
            // Requirements on types: one label, several labels, a missing label, an unknown label.
            (&["x 0 family=m7i 0.5"], "0.5/0.5 0.5/0.5", g5),
            (&["x 0 family=m7i,g5 category!=g -50%"], "0.5/0.175 0.5/0.175", g5),
            (&["x 0 gpu-name!=a10g +1"], "2/1.35 2/1.35", g5),
            (&["x 0 gpu-name=a10g +1"], m7i, "3/1.7 3/1.7"),
            (&["x 0 no-such=a 9"], m7i, g5),
            (&["x 0 type=m7i.large no-such!=a 9"], "9/9 9/9", g5),
            // Requirements on offerings.
            (&["x 0 family=m7i zone=eu-a buy=on-demand 0.9"], "0.9/0.35 1/0.35", g5),
            (&["x 0 buy=spot -100%"], "1/0 1/0", "2/0 2/0"),
            (&["x 0 zone=eu-c 9"], m7i, g5),
            // Requirements on the pool, its labels and its node class.
            (&["x 0 pool=gpu family=g5 5"], m7i, "5/5 5/5"),
            (&["x 0 pool=general family=g5 5"], m7i, g5),
            (&["x 0 pool!=general family=g5 5"], m7i, "5/5 5/5"),
            (&["x 0 team=ml family=g5 5"], m7i, "5/5 5/5"),
            (&["x 0 team=web family=g5 5"], m7i, g5),
            (&["x 0 class=al2023 family=g5 5"], m7i, "5/5 5/5"),
            // The overlay with the higher weight takes precedence and is not adjusted further. For
            // equal weights, the last by name takes precedence.
            (&["a 5 family=m7i 7", "b 1 family=m7i -50%"], "7/7 7/7", g5),
            (&["a 1 family=m7i 7", "b 5 family=m7i -50%"], "0.5/0.175 0.5/0.175", g5),
            (&["a 0 family=m7i 7", "b 0 category=m 8"], "8/8 8/8", g5),
            // Offerings are independent: a lower weight applies to those that the higher does not
            // cover.
            (&["a 5 family=m7i zone=eu-a 7", "b 1 category=m 8"], "7/7 8/8", g5),
            // An overlay without a price does not affect one with a price.
            (&["a 5 family=m7i example.com/dev:1", "b 1 family=m7i 8"], "8/8 8/8", g5),
            (&["x 0 family=m7i -0.4"], "0.6/0 0.6/0", g5),
        ];
        for (texts, m7i, g5) in rows {
            let plain = catalog();
            let overlaid = with_overlays(&plain, &ordered(texts), &pool());
            for (name, expect) in [("m7i.large", m7i), ("g5.large", g5)] {
                let it = overlaid.get(name).expect("a type");
                assert_eq!(prices(it), expect, "{name} {texts:?}");
                assert!(it.offerings.is_sorted_by_key(|it| it.price), "{texts:?}");
                let before = plain.get(name).expect("a type");
                assert_eq!(it.allocatable.cpu_milli, before.allocatable.cpu_milli);
                assert_eq!(it.requirements, before.requirements);
            }
        }
    }

    /// Overlays, a resource, and its resulting quantity for pods on m7i.large and g5.large.
    #[test]
    fn overlays_adjust_capacity() {
        let rows: [(&[&str], &str, [i64; 2]); 9] = [
            (&[], "nvidia.com/gpu", [0, 1]),
            (&["x 0 family=m7i example.com/dev:4"], "example.com/dev", [4, 0]),
            (&["x 0 category!=x nvidia.com/gpu:8"], "nvidia.com/gpu", [8, 8]),
            (&["x 0 category!=x nvidia.com/gpu:0"], "nvidia.com/gpu", [0, 0]),
            // Capacity applies to the whole type if any of its offerings matches.
            (&["x 0 zone=eu-b example.com/dev:4"], "example.com/dev", [4, 4]),
            (&["x 0 zone=eu-c example.com/dev:4"], "example.com/dev", [0, 0]),
            // The first overlay takes precedence, and different resources are independent.
            (&["a 5 family=g5 d:1", "b 1 family=g5 d:2 e:3"], "d", [0, 1]),
            (&["a 5 family=g5 d:1", "b 1 family=g5 d:2 e:3"], "e", [0, 3]),
            (&["a 0 family=g5 d:1", "b 0 family=g5 d:2"], "d", [0, 2]),
        ];
        for (texts, resource, expect) in rows {
            let plain = catalog();
            let overlaid = with_overlays(&plain, &ordered(texts), &pool());
            let got = ["m7i.large", "g5.large"].map(|name| {
                let it = overlaid.get(name).expect("a type");
                assert_eq!(it.capacity.get(resource), it.allocatable.get(resource));
                it.allocatable.get(resource)
            });
            assert_eq!(got, expect, "{texts:?} {resource}");
        }
    }

    #[test]
    fn huge_pages_reduce_allocatable_memory() {
        let plain = catalog();
        let before = plain.get("m7i.large").expect("a type");
        for (amount, reserved) in [(0, 0), (GIB, GIB), (64 * GIB, before.allocatable.memory)] {
            let text = format!("x 0 family=m7i hugepages-2Mi:{amount}");
            let overlaid = with_overlays(&plain, &ordered(&[&text]), &pool());
            let overlaid = overlaid.get("m7i.large").expect("a type");
            assert_eq!(overlaid.allocatable.memory, before.allocatable.memory - reserved);
            assert_eq!(overlaid.capacity.memory, before.capacity.memory);
            assert_eq!(overlaid.allocatable.get("hugepages-2Mi"), amount);
        }
    }

    #[test]
    fn pool_without_matching_overlays_uses_the_plain_catalog() {
        let overlays = ordered(&["x 0 pool=gpu family=g5 5", "y 0 family=m7i 1 -0%"]);
        let plain = catalog();
        let other = with_overlays(&plain, &overlays, &Pool::new("general"));
        assert!(matches!(other, Cow::Borrowed(_)));
        let cluster =
            Cluster { pools: vec![pool(), Pool::new("general")], overlays, ..Cluster::default() };
        let all = PoolCatalogs::new(&plain, &cluster);
        for (name, expect) in [("gpu", Some("5/5 5/5")), ("general", None), ("", None)] {
            let found = all.get(name).and_then(|catalog| catalog.get("g5.large"));
            assert_eq!(found.map(prices).as_deref(), expect, "{name}");
        }
    }
}
