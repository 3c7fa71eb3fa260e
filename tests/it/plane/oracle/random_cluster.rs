//! Generates clusters: pools, types, daemons, nodes with their pods, and pending pods.

mod features;
mod volumes;

use fastrand::Rng;
use outrigger::model::instance::CapacityType;
use outrigger::model::labels::{ATTACHABLE, CAPACITY_TYPE, HOSTNAME};
use outrigger::model::pool::Pool;
use outrigger::model::requirement::Requirement;
use outrigger::model::taint::{Effect, Taint};
use serde_json::{Value, json};

use super::fixture::{AGENTS, DRIVER, NAMESPACES, Owned, Standing, Tags, World, limits, node};
use features::FEATURES;

pub(super) use volumes::classes;

/// A custom node label that pods are spread over.
pub(super) const RACK: &str = "example.com/rack";

const ZONES: [&str; 3] = ["a", "b", "c"];

/// Returns the names of all constraints.
pub(super) fn constraints() -> Vec<&'static str> {
    let features = FEATURES.iter().map(|(name, _)| *name);
    features.chain(OF_CLUSTERS).collect()
}

/// Constraints of clusters.
const OF_CLUSTERS: [&str; 17] = [
    "nodes with too much on them",
    "nodes of others without a zone",
    "host ports of daemons",
    "daemons",
    "daemons of some nodes",
    "daemons that selectors mean",
    "anti-affinity of daemons",
    "startup taints",
    "taints NoSchedule",
    "taints NoExecute",
    "taints PreferNoSchedule",
    "pods that are running",
    "anti-affinity of running pods",
    "pods on their way out",
    "limits of CSINodes",
    "limits of volumes on new nodes",
    "spread by default",
];

/// Constraints that are not generated, and the reasons. The list should become empty.
pub(super) const OFF: [(&str, &str); 3] = [
    (
        "labels of types that nobody knows",
        "a pod may ask for well-known labels and those that its pool names (scheduling.md §2.2)",
    ),
    (
        "volumes made by hand that are free",
        "a claim of a class that makes no volumes is refused until it has one, whatever lies free: \
         which of them it gets the scheduler alone decides, and no node that is made brings one",
    ),
    (
        "limits, gangs, hold-downs, preemption",
        "the scheduler knows nothing of the former, and preemption is no matter of places",
    ),
];

/// A seeded random generator.
pub(super) struct Chance(Rng);

impl Chance {
    /// Returns true with a probability of one in `many`.
    fn one_in(&mut self, many: usize) -> bool {
        self.0.usize(0..many) == 0
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.0.usize(0..all.len())].clone()
    }

    fn up_to(&mut self, most: usize) -> usize {
        self.0.usize(0..=most)
    }
}

/// Returns the random cluster of a seed.
pub(super) fn world(seed: u64) -> World {
    let mut chance = Chance(Rng::with_seed(seed));
    let mut world = World {
        seed,
        tags: Tags::new(),
        pools: Vec::new(),
        types: Value::Null,
        daemons: Vec::new(),
        services: Vec::new(),
        standing: Vec::new(),
        deployments: Vec::new(),
    };
    world.types = types(&mut chance, &mut world.tags);
    for name in ["p", "q"].into_iter().take(1 + chance.up_to(1)) {
        let pool = pool(&mut chance, name, &mut world.tags);
        world.pools.push(pool);
    }
    for at in 0..chance.up_to(2) {
        let set = daemon_set(&mut chance, at, &mut world.tags);
        world.daemons.push(set);
    }
    for at in 0..chance.up_to(3) {
        let standing = standing(&mut chance, at, &mut world);
        world.standing.push(standing);
    }
    for at in 0..2 + chance.up_to(4) {
        let own = features::deployment(&mut chance, at, seed);
        world.deployments.push(own);
    }
    for (namespace, _) in NAMESPACES {
        if chance.one_in(6) {
            world.tags.insert("spread by default");
            world.services.push(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": namespace, "name": "own"},
                "spec": {"clusterIP": "None", "selector": {"app": chance.of(&["a", "b", "c"])}},
            }));
        }
    }
    world
}

/// Returns at most eight types, some with rare resources.
fn types(chance: &mut Chance, tags: &mut Tags) -> Value {
    let all = [
        ("c-2", 2, 4, "amd64", &[][..]),
        ("m-4", 4, 32, "amd64", &[]),
        ("c-8", 8, 16, "amd64", &[]),
        ("m-16", 16, 128, "amd64", &[]),
        ("a-8", 8, 32, "arm64", &[]),
        ("g-8", 8, 32, "amd64", &[("nvidia.com/gpu", "2")]),
        ("d-4", 4, 16, "amd64", &[("example.com/dev", "3")]),
        ("h-8", 8, 32, "amd64", &[("hugepages-2Mi", "256Mi")]),
    ];
    let mut types = Vec::new();
    for (name, cpu, gib, arch, extra) in all {
        // The first types suffice for most pods; of the others one in four is left out.
        if types.len() > 1 && chance.one_in(4) {
            continue;
        }
        let mut resources = json!({
            "cpu": cpu.to_string(), "memory": format!("{gib}Gi"),
            "pods": (cpu * 3).to_string(), "ephemeral-storage": "20Gi",
        });
        for (resource, amount) in extra {
            resources[*resource] = (*amount).into();
        }
        if chance.one_in(4) {
            tags.insert("limits of volumes on new nodes");
            let most = chance.of(&["1", "2", "3"]);
            resources[format!("{ATTACHABLE}{DRIVER}")] = most.into();
        }
        let mut offerings = Vec::new();
        for zone in ZONES {
            for (bought, share) in [("spot", 0.7), ("on-demand", 1.0)] {
                let price = share * (f64::from(cpu) * 0.04 + f64::from(gib) * 0.005);
                offerings.push(json!({
                    "Price": price, "Available": !chance.one_in(8),
                    "Requirements": [
                        {"key": "topology.kubernetes.io/zone", "operator": "In",
                            "values": [zone]},
                        {"key": CAPACITY_TYPE, "operator": "In", "values": [bought]},
                    ],
                }));
            }
        }
        types.push(json!({
            "name": name, "architecture": arch, "operatingSystems": ["linux"],
            "resources": resources, "offerings": offerings,
        }));
    }
    types.into()
}

fn a_taint(effect: Effect, value: &str) -> Taint {
    Taint { value: value.to_owned(), ..Taint::new("dedicated", effect) }
}

fn pool(chance: &mut Chance, name: &str, tags: &mut Tags) -> Pool {
    let mut pool = Pool::new(name);
    pool.weight = u32::from(chance.one_in(4));
    let racks: &[&str] = chance.of(&[&[][..], &["r1"], &["r1", "r2"]]);
    if !racks.is_empty() {
        let racks = Requirement::is_in(racks.iter().copied());
        pool.requirements.add(RACK, racks);
    }
    if chance.one_in(4) {
        let zones = Requirement::is_in(["a", "b"]);
        pool.requirements.add("topology.kubernetes.io/zone", zones);
    }
    if chance.one_in(3) {
        let bought = Requirement::is_in(["on-demand"]);
        pool.requirements.add(CAPACITY_TYPE, bought);
    }
    if chance.one_in(2) {
        pool.labels.insert("team".to_owned(), "x".to_owned());
    }
    for (effect, tag) in [
        (Effect::NoSchedule, "taints NoSchedule"),
        (Effect::NoExecute, "taints NoExecute"),
        (Effect::PreferNoSchedule, "taints PreferNoSchedule"),
    ] {
        // Most pods need a pool without taints.
        if name == "q" && chance.one_in(2) || chance.one_in(12) {
            // `Lt` and `Gt` compare integers; kube-scheduler does not read "05" as one.
            let value = chance.of(&["x", "", "5", "05"]);
            pool.taints.push(a_taint(effect, value));
            tags.insert(tag);
        }
    }
    if chance.one_in(5) {
        pool.startup_taints = vec![Taint::new("starting", Effect::NoSchedule)];
        tags.insert("startup taints");
    }
    pool
}

fn daemon_set(chance: &mut Chance, at: usize, tags: &mut Tags) -> Value {
    tags.insert("daemons");
    let mut spec = json!({
        "containers": [{"name": "main", "image": "main", "resources": {
            "requests": {"cpu": chance.of(&["100m", "300m"]), "memory": "100Mi"}}}],
        "tolerations": [],
    });
    if chance.one_in(2) {
        spec["tolerations"] = json!([{"operator": "Exists"}]);
    }
    if chance.one_in(2) {
        tags.insert("daemons of some nodes");
        let wanted =
            chance.of(&[("kubernetes.io/arch", "amd64"), ("team", "x"), (CAPACITY_TYPE, "spot")]);
        spec["nodeSelector"][wanted.0] = wanted.1.into();
    }
    if chance.one_in(4) {
        tags.insert("host ports of daemons");
        spec["containers"][0]["ports"] =
            json!([{"containerPort": 9100, "hostPort": chance.of(&[8080, 8081])}]);
    }
    let own = json!({"daemon": format!("d{at}")});
    let (mut namespace, mut labels) = (AGENTS, own.clone());
    if chance.one_in(3) {
        tags.insert("daemons that selectors mean");
        namespace = chance.of(&NAMESPACES).0;
        labels["app"] = chance.of(&["a", "b", "c"]).into();
    }
    if chance.one_in(4) {
        tags.insert("anti-affinity of daemons");
        let mut term = features::term(chance);
        term["namespaces"] = json!(["one", "two"]);
        if namespace != AGENTS {
            // Daemon pods are created here whatever pods are in the zone, but pending pods may
            // depend on them.
            term["topologyKey"] = HOSTNAME.into();
        }
        spec["affinity"]["podAntiAffinity"] =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    }
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"namespace": namespace, "name": format!("d{at}")},
        "spec": {
            "selector": {"matchLabels": own},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    })
}

fn standing(chance: &mut Chance, at: usize, world: &mut World) -> Standing {
    let name = format!("w{}-s{at}", world.seed);
    let catalog = world.catalog();
    let all: Vec<_> = catalog.types().collect();
    let it = all[chance.up_to(all.len() - 1)];
    let pool = &world.pools[chance.up_to(world.pools.len() - 1)];
    let bought = chance.of(&[CapacityType::Spot, CapacityType::OnDemand]);
    let mut own = Vec::new();
    if chance.one_in(2) {
        own.push((RACK.to_owned(), chance.of(&["r1", "r2"]).to_owned()));
    }
    let zone = chance.of(&ZONES);
    let mut made = node(&name, pool, it, (zone, bought), own);
    if chance.one_in(6) {
        made["spec"]["unschedulable"] = true.into();
    }
    if chance.one_in(6) {
        let labels = made["metadata"]["labels"].as_object_mut();
        let labels = labels.expect("a node has labels");
        labels.retain(|key, _| !key.ends_with("/zone") && key != "karpenter.sh/nodepool");
        world.tags.insert("nodes of others without a zone");
    }
    if chance.one_in(6) {
        let of = chance.of(&["NoSchedule", "NoExecute", "PreferNoSchedule"]);
        let value = chance.of(&["x", "5"]);
        made["spec"]["taints"] = json!([{"key": "dedicated", "value": value, "effect": of},
            {"key": "other", "value": "", "effect": "NoSchedule"}]);
    }
    let csi = chance.one_in(2).then(|| {
        world.tags.insert("limits of CSINodes");
        limits(&name.as_str().into(), chance.of(&[1, 2, 3]))
    });
    let mut residents = Vec::new();
    for of in 0..chance.up_to(3) {
        let own = resident(chance, &name, (zone, of), &mut world.tags);
        residents.push(own);
    }
    Standing { node: made, csi, residents }
}

fn resident(chance: &mut Chance, node: &str, at: (&str, usize), tags: &mut Tags) -> Owned {
    tags.insert("pods that are running");
    let app = chance.of(&["a", "b", "c"]);
    let (namespace, _) = chance.of(&NAMESPACES);
    let name = format!("{node}-{}", at.1);
    let mut requests = json!({"cpu": "300m", "memory": "200Mi"});
    if chance.one_in(6) {
        // More than the allocatable resources: a node can shrink, and a pod can be bound without
        // the scheduler.
        requests = chance.of(&[
            json!({"cpu": "20"}),
            json!({"memory": "200Gi"}),
            json!({"ephemeral-storage": "40Gi"}),
        ]);
        tags.insert("nodes with too much on them");
    }
    let mut own = Owned {
        pod: json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name,
                "labels": {"app": app, "rev": chance.of(&["1", "2"])}},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "image": "main", "ports": [],
                    "resources": {"requests": requests}}],
            },
        }),
        ..Owned::default()
    };
    if chance.one_in(4) {
        tags.insert("anti-affinity of running pods");
        let mut term = features::term(chance);
        if chance.one_in(2) {
            term["namespaceSelector"] = json!({"matchExpressions": [
                {"key": "team", "operator": "Exists"}]});
        }
        own.pod["spec"]["affinity"]["podAntiAffinity"] =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    }
    if chance.one_in(4) {
        own.pod["spec"]["containers"][0]["ports"] =
            json!([{"containerPort": 80, "hostPort": chance.of(&[8080, 8081])}]);
    }
    if chance.one_in(4) {
        volumes::of_resident(&mut own, at.0);
    }
    if chance.one_in(6) {
        tags.insert("pods on their way out");
        own.deleting = true;
    }
    own
}
