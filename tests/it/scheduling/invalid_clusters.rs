//! Contradictory, excessive and invalid clusters: the scheduler returns a result for every pod.

use std::collections::BTreeMap;

use outrigger::catalog::Catalog;
use outrigger::model::affinity::{Gang, PodTerm, Preferred};
use outrigger::model::fleet::FleetView;
use outrigger::model::id::{ClaimId, ObjectKey};
use outrigger::model::instance::{InstanceType, Price};
use outrigger::model::labels::{CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, Labels, NODE_NAME, ZONE};
use outrigger::model::pod::DaemonSet;
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Operator, Requirement, Requirements};
use outrigger::model::selector::Selector;
use outrigger::model::taint::{Effect, Taint};
use outrigger::scheduling::{Solution, solve};
use outrigger::state::snapshot::{NodeRef, VolumeRequirements};
use proptest::prelude::any;
use proptest::{collection, prop_assert, proptest};

use super::checker::check_counts;
use super::fixture::{
    GIB, NOW, World, app, kwok_like, label, pod, pods, room, spread, taint, term, tolerates, world,
};
use super::random_clusters::a_world;
use super::random_pods::{DISKS, RACK, UNUSED_LABEL};

/// A defect of a world. The number selects the object and the extent of the defect.
type Defect = fn(&mut World, usize);

const EXTREMES: [i64; 7] = [i64::MIN, -1, 0, 1, i64::MAX / 2, i64::MAX - 1, i64::MAX];

fn extreme_amount(at: usize) -> i64 {
    EXTREMES[at % EXTREMES.len()]
}

fn extreme_count(at: usize) -> u32 {
    [0, 1, u32::MAX][at % 3]
}

fn extreme_resources(at: usize) -> Resources {
    Resources {
        cpu_milli: extreme_amount(at),
        memory: extreme_amount(at / 7),
        ephemeral_storage: extreme_amount(at / 3),
        pods: extreme_amount(at / 5),
        extended: BTreeMap::from([("x/y".to_owned(), extreme_amount(at / 2))]),
    }
}

/// Changes one of several items, if there are any.
fn change_one<T>(all: &mut [T], at: usize, with: impl FnOnce(&mut T)) {
    let count = all.len().max(1);
    if let Some(one) = all.get_mut(at % count) {
        with(one);
    }
}

fn edit_types(world: &mut World, edit: impl Fn(&mut InstanceType)) {
    let mut types: Vec<InstanceType> = world.catalog.types().cloned().collect();
    types.iter_mut().for_each(edit);
    world.catalog = Catalog::new(types);
}

fn single_value(key: &str, value: &str) -> Requirements {
    Requirements::from_iter([(key, Requirement::is_in([value]))])
}

fn numbered_names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{prefix}{at}")).collect()
}

/// Pods with impossible requests and node constraints.
const POD_DEFECTS: &[Defect] = &[
    |world, at| change_one(&mut world.pods, at, |pod| pod.requests = extreme_resources(at)),
    |world, at| change_one(&mut world.pods, at, |pod| pod.requests = Resources::default()),
    |world, at| {
        change_one(&mut world.pods, at, |pod| {
            pod.node_selector.extend([label(ZONE, "a")]);
            pod.node_affinity = vec![single_value(ZONE, "b"), single_value(ZONE, "")];
        });
    },
    |world, at| {
        change_one(&mut world.pods, at, |pod| {
            let mut term = single_value(ZONE, "a");
            term.add(ZONE, Requirement::does_not_exist());
            term.add(CAPACITY_TYPE, Requirement::impossible());
            pod.node_affinity = vec![term, Requirements::default()];
        });
    },
    |world, at| {
        change_one(&mut world.pods, at, |pod| {
            let far = Requirement::from_operator(Operator::Gt, &[i64::MAX.to_string()]);
            let mut term = Requirements::from_iter([(ZONE, far.expect("an integer"))]);
            term.add("", Requirement::exists());
            term.add(NODE_NAME, Requirement::does_not_exist());
            pod.node_affinity = vec![term];
        });
    },
    |world, at| {
        change_one(&mut world.pods, at, |pod| {
            let zones = numbered_names("z", 10_000);
            let not = Requirement::not_in(zones.iter().map(String::as_str));
            let any = Requirement::is_in(zones);
            let term = Requirements::from_iter([(ZONE, not), (UNUSED_LABEL, any)]);
            pod.node_affinity = vec![term; 3];
        });
    },
    |world, at| {
        change_one(&mut world.pods, at, |pod| {
            pod.node_affinity =
                numbered_names("z", 400).iter().map(|zone| single_value(ZONE, zone)).collect();
        });
    },
    |world, at| {
        change_one(&mut world.pods, at, |pod| {
            pod.host_ports = (0..2000).map(|at| ("TCP".to_owned(), String::new(), at)).collect();
            pod.tolerations = vec![tolerates("x"); 500];
        });
    },
    |world, at| {
        let pod = world.pods.get(at % world.pods.len().max(1)).cloned();
        world.pods.extend(pod);
    },
];

/// Pods with contradictory constraints on each other.
const CONSTRAINT_DEFECTS: &[Defect] = &[
    |world, at| {
        let key = ["", UNUSED_LABEL, NODE_NAME, INSTANCE_TYPE, "app"][at % 5];
        change_one(&mut world.pods, at, |pod| {
            pod.spread.push(spread(app("a"), key, 1));
            pod.affinity.push(term(app("a"), key));
            pod.anti_affinity.push(term(Selector::default(), key));
        });
    },
    |world, at| {
        change_one(&mut world.pods, at, |pod| {
            let mut constraint = spread(Selector::default(), ZONE, extreme_count(at));
            constraint.min_domains = extreme_count(at / 3);
            pod.spread = vec![constraint.clone(), constraint];
        });
    },
    |world, at| {
        change_one(&mut world.pods, at, |pod| {
            let one = |name: &String| term(app(name), ZONE);
            pod.anti_affinity = numbered_names("a", 300).iter().map(one).collect();
            pod.affinity = numbered_names("a", 3 * at % 300).iter().map(one).collect();
        });
    },
    |world, at| {
        change_one(&mut world.pods, at, |pod| {
            let key = |key: &String| spread(app("a"), key, 1);
            pod.spread = numbered_names("key", 200).iter().map(key).collect();
            pod.spread.iter_mut().for_each(|constraint| constraint.is_hard = at % 2 == 0);
        });
    },
    |world, at| {
        change_one(&mut world.pods, at, |pod| {
            let weight = [i32::MIN, -1, 0, i32::MAX][at % 4];
            let wish = |name: &String| Preferred { weight, term: term(app(name), ZONE) };
            pod.preferred_affinity = numbered_names("a", 100).iter().map(wish).collect();
            pod.preferred_anti_affinity = pod.preferred_affinity.clone();
            let wish = |zone: &String| Preferred { weight, term: single_value(ZONE, zone) };
            pod.preferred_nodes = numbered_names("z", 100).iter().map(wish).collect();
        });
    },
    // Each pod has affinity and anti-affinity to the same pods, which include itself.
    |world, at| {
        let key = [HOSTNAME, ZONE][at % 2];
        for pod in &mut world.pods {
            pod.affinity = vec![term(Selector::default(), key)];
            pod.anti_affinity = vec![term(Selector::default(), key)];
        }
    },
    |world, at| {
        let selector = app("a");
        change_one(&mut world.pods, at, |pod| {
            let nobody = PodTerm {
                selector: None,
                namespaces: [].into(),
                namespace_selector: Some(Selector::new([
                    ("k".to_owned(), Requirement::impossible()),
                    ("".to_owned(), Requirement::exists()),
                ])),
                topology_key: ZONE.to_owned(),
            };
            pod.affinity.push(nobody.clone());
            pod.anti_affinity.extend([nobody, term(selector, ZONE)]);
        });
        world.namespaces.clear();
    },
    |world, at| {
        let least = [None, Some(0), Some(1), Some(u32::MAX)][at % 4];
        for pod in &mut world.pods {
            let name = String::new();
            pod.gang = Some(Gang { name, least });
            pod.priority = [i32::MIN, i32::MAX][at % 2];
        }
    },
];

/// Invalid pools, types and settings.
const SUPPLY_DEFECTS: &[Defect] = &[
    |world, at| edit_types(world, |it| it.allocatable = extreme_resources(at)),
    |world, _| edit_types(world, |it| it.allocatable = Resources::default()),
    |world, at| edit_types(world, |it| it.capacity = extreme_resources(at)),
    |world, _| edit_types(world, |it| it.offerings.clear()),
    |world, _| edit_types(world, |it| it.requirements = Requirements::default()),
    |world, _| world.catalog = Catalog::default(),
    |world, at| {
        let price = Price::new([0.0, f64::MAX, f64::MIN_POSITIVE][at % 3]);
        edit_types(world, |it| {
            for offering in &mut it.offerings {
                offering.price = price.expect("a price");
            }
        });
    },
    |world, at| {
        change_one(&mut world.cluster.pools, at, |pool| {
            let racks = Requirement::is_in(numbered_names("r", 10_000));
            pool.requirements.add(RACK, racks);
        });
    },
    |world, at| {
        change_one(&mut world.cluster.pools, at, |pool| {
            let key = [ZONE, CAPACITY_TYPE, RACK, HOSTNAME, ""][at % 5];
            pool.requirements.add(key, Requirement::impossible());
            pool.labels = Labels::from([label(ZONE, "nowhere"), label(RACK, "r9")]);
        });
    },
    |world, at| {
        change_one(&mut world.cluster.pools, at, |pool| {
            let mut wanted = Requirement::exists();
            wanted.min_values = Some(extreme_count(at));
            for key in [INSTANCE_TYPE, ZONE, UNUSED_LABEL] {
                pool.requirements.add(key, wanted.clone());
            }
        });
    },
    |world, at| {
        change_one(&mut world.cluster.pools, at, |pool| {
            let names = ["cpu", "memory", "pods", "nobody/has-it"];
            let limit = |name: &&str| ((*name).to_owned(), extreme_amount(at));
            pool.limits.capacity = names.iter().map(limit).collect();
            pool.limits.nodes = Some(extreme_count(at));
            pool.weight = extreme_count(at);
        });
        let names = ["cpu", "memory", "pods", "nobody/has-it"];
        let limit = |name: &&str| ((*name).to_owned(), extreme_amount(at / 2));
        world.cluster.limits.capacity = names.iter().map(limit).collect();
        world.cluster.limits.nodes = Some(extreme_count(at / 2));
        world.fleet = Some(FleetView {
            limits: world.cluster.limits.clone(),
            share: world.cluster.limits.remaining_after(&extreme_resources(at), at),
            closed: None,
            ..FleetView::default()
        });
    },
    |world, at| {
        let names: Vec<_> = world.cluster.pools.iter().map(|pool| pool.name.clone()).collect();
        for name in names {
            let used = world.usage.entry(name).or_default();
            used.capacity = extreme_resources(at);
            used.nodes = [0, usize::MAX][at % 2];
        }
    },
    |world, at| {
        let twin = world.cluster.pools.get(at % world.cluster.pools.len().max(1));
        world.cluster.pools.extend(twin.cloned());
    },
    |world, at| {
        let scheduling = &mut world.cluster.scheduling;
        scheduling.max_launch_options = extreme_count(at);
        scheduling.alternative_price_percent = extreme_count(at / 3);
        scheduling.priority_cutoff = [None, Some(i32::MIN), Some(i32::MAX)][at % 3];
        let price = Price::new([0.0, f64::MAX][at % 2]);
        scheduling.node_overhead_price = price.expect("a price");
        scheduling.default_spread = vec![spread(Selector::default(), UNUSED_LABEL, 0)];
    },
];

/// Invalid nodes, bound pods, volumes and daemons.
const NODE_DEFECTS: &[Defect] = &[
    |world, at| change_one(&mut world.rooms, at, |room| room.free = extreme_resources(at)),
    |world, at| {
        change_one(&mut world.rooms, at, |room| room.labels = Requirements::default().into())
    },
    |world, at| {
        change_one(&mut world.rooms, at, |room| {
            room.labels = Requirements::from_iter([
                (ZONE, Requirement::impossible()),
                (HOSTNAME, Requirement::not_in(["n0"])),
                (RACK, Requirement::is_in(numbered_names("r", 10_000))),
                (CAPACITY_TYPE, Requirement::does_not_exist()),
            ])
            .into();
        });
    },
    |world, at| {
        let twin = world.rooms.get(at % world.rooms.len().max(1));
        world.rooms.extend(twin.cloned());
    },
    |world, at| {
        change_one(&mut world.rooms, at, |room| {
            let one = |at: usize| Taint {
                value: at.to_string(),
                ..taint("x", [Effect::NoSchedule, Effect::PreferNoSchedule][at % 2])
            };
            room.taints = (0..500).map(one).collect();
            room.host_ports = (0..2000).map(|at| ("UDP".to_owned(), String::new(), at)).collect();
        });
    },
    |world, at| {
        let mut unknown = pod("stranger", extreme_amount(at), 0);
        unknown.node = Some("nowhere".into());
        unknown.anti_affinity = vec![term(Selector::default(), ZONE)];
        world.residents.push(unknown.clone());
        let host = NodeRef::Claim(ClaimId::from("nowhere"));
        world.promised.insert(host, vec![unknown]);
    },
    |world, at| {
        let zones = numbered_names("z", 300);
        for pod in &world.pods {
            let mounts = VolumeRequirements {
                fault: None,
                alternatives: zones.iter().map(|zone| single_value(ZONE, zone)).collect(),
                attached: BTreeMap::from([(DISKS.to_owned(), extreme_amount(at))]),
            };
            world.mounts.insert(pod.key.clone(), mounts);
        }
        let mounts = VolumeRequirements {
            alternatives: vec![Requirements::default(), single_value(ZONE, "")],
            ..VolumeRequirements::default()
        };
        world.mounts.insert(ObjectKey::new("no", "pod"), mounts);
    },
    |world, at| {
        let mut template = pod("d", 0, 0);
        template.requests = extreme_resources(at);
        template.host_ports = (0..100).map(|at| ("TCP".to_owned(), String::new(), at)).collect();
        template.anti_affinity = vec![term(Selector::default(), HOSTNAME)];
        template.tolerations = vec![tolerates("")];
        let key = ObjectKey::new("", "");
        world.daemons.push(DaemonSet { key, template });
    },
];

/// Checks that every pod has a result.
fn check_all_results(world: &World, solution: &Solution) -> Result<(), String> {
    check_counts(solution, world.pods.len())
}

/// A plain world with pools, nodes and pods.
fn plain_world() -> World {
    let zones = ["a", "b", "c"];
    let mut world =
        World { catalog: Catalog::new(kwok_like("amd64", &[1, 4, 16], &zones)), ..world() };
    world.cluster.pools.push(Pool::new("second"));
    let free = pod("", 2000, 8 * GIB).requests;
    world.rooms =
        ["n0", "n1"].map(|name| room(name, Resources { pods: 9, ..free.clone() })).to_vec();
    world.pods = pods("p", 5, 1000, GIB);
    for pod in &mut world.pods {
        pod.labels = Labels::from([label("app", "a")]);
    }
    world
}

#[test]
fn every_single_defect_gives_every_pod_a_result() {
    for (kind, poison) in
        [POD_DEFECTS, CONSTRAINT_DEFECTS, SUPPLY_DEFECTS, NODE_DEFECTS].concat().iter().enumerate()
    {
        for at in [0, 1, 2, 3, 4, 5, 6, 13, 48] {
            let mut world = plain_world();
            poison(&mut world, at);
            let total = check_all_results(&world, &world.solve());
            assert_eq!(total, Ok(()), "defect {kind} at {at}");
        }
    }
}

#[test]
fn maximum_pod_counts_give_every_pod_a_result() {
    let mut world = plain_world();
    let mut neighbour = pod("r", 0, 0);
    neighbour.labels = Labels::from([label("app", "a")]);
    neighbour.node = Some("n0".into());
    neighbour.anti_affinity = vec![term(app("b"), ZONE)];
    world.residents = vec![neighbour.clone()];
    neighbour.labels.clear();
    world.residents.push(neighbour);
    for pod in &mut world.pods {
        pod.spread = vec![spread(Selector::default(), HOSTNAME, 1)];
        pod.spread.push(spread(app("a"), HOSTNAME, u32::MAX));
        pod.anti_affinity = vec![term(app("b"), HOSTNAME)];
    }
    let mut snapshot = world.snapshot();
    for resident in &mut snapshot.residents {
        let nodes = resident.nodes.clone();
        resident.nodes.extend(nodes);
        resident.nodes.iter_mut().for_each(|node| node.1 = u32::MAX);
    }
    assert_eq!(check_all_results(&world, &solve(&snapshot, NOW)), Ok(()));
}

/// Many pods of many kinds, whose constraints refer to each other.
#[test]
fn many_interdependent_pods_all_get_a_result() {
    let mut world = plain_world();
    world.pods = pods("p", 240, 100, GIB / 8);
    for (at, pod) in world.pods.iter_mut().enumerate() {
        let kind = format!("k{}", at % 40);
        pod.labels = Labels::from([label("app", &kind)]);
        let key = [HOSTNAME, ZONE, CAPACITY_TYPE][at % 3];
        pod.spread = vec![spread(Selector::default(), key, 1)];
        pod.anti_affinity = vec![term(app(&kind), HOSTNAME)];
        let next = format!("k{}", (at + 1) % 40);
        pod.preferred_anti_affinity = vec![Preferred { weight: 1, term: term(app(&next), ZONE) }];
        if at % 7 == 0 {
            pod.affinity = vec![term(app(&next), ZONE)];
        }
    }
    assert_eq!(check_all_results(&world, &world.solve()), Ok(()));
}

proptest! {
    #[test]
    fn random_defects_give_every_pod_a_result(
        mut world in a_world(&[]),
        kinds in collection::vec((any::<usize>(), any::<u16>()), 0..5),
    ) {
        let all = [POD_DEFECTS, CONSTRAINT_DEFECTS, SUPPLY_DEFECTS, NODE_DEFECTS].concat();
        for (kind, at) in &kinds {
            all[kind % all.len()](&mut world, usize::from(*at));
        }
        let total = check_all_results(&world, &world.solve());
        prop_assert!(total.is_ok(), "{:?}", total);
    }
}
