//! Small fleets whose consolidations can be calculated manually: disrupted nodes, replacements and
//! blockers.

use jiff::SignedDuration;
use outrigger::model::affinity::{PodTerm, Preferred, TopologySpread};
use outrigger::model::claim::ClaimPhase;
use outrigger::model::cluster::{MinValuesPolicy, PreferencePolicy};
use outrigger::model::instance::{CapacityType, InstanceType};
use outrigger::model::labels::{
    CAPACITY_TYPE, DO_NOT_DISRUPT, HOSTNAME, INITIALIZED, INSTANCE_TYPE, POOL, TAINT_DISRUPTED,
    ZONE,
};
use outrigger::model::overlay::{Overlay, PriceAdjustment};
use outrigger::model::pdb::{Bound, Pdb};
use outrigger::model::pool::{BudgetNodes, Consolidation, Pool, Reason};
use outrigger::model::requirement::Requirement;
use outrigger::model::selector::Selector;
use outrigger::model::taint::{Effect, Taint};
use outrigger::model::watched_object::WatchedObject;

use super::consolidation_fixture::{
    Fleet, ON_DEMAND, OfferingSpec, RESERVED, SPOT, app, buying, instance_type, plan_summary,
    retaining_code, sizes,
};
use super::fixture::{NOW, annotated, pdb, pod, pool};

/// A change of the fleet, and its result: the disrupted nodes and their replacements, or the code
/// of the verdict that retains `n`.
type Row = (&'static str, fn(&mut Fleet), &'static str);

fn check_rows(base: fn() -> Fleet, rows: &[Row]) {
    for (what, change, expect) in rows {
        let mut fleet = base();
        change(&mut fleet);
        let moves = fleet.changes();
        let found = if moves.is_empty() { fleet.retaining_code("n").to_owned() } else { moves };
        assert_eq!(found, *expect, "{what}: {:?}", fleet.plan().kept);
    }
}

/// A node with four cores and a pod with one core, and another node that has capacity for just this
/// pod.
fn two_nodes() -> Fleet {
    let mut fleet = Fleet::plain();
    fleet.node("n", "s4");
    fleet.pod("p", "n", 1000);
    fleet.node("other", "s8");
    fleet.pod("q", "other", 7000);
    fleet
}

fn annotate_pod(fleet: &mut Fleet, value: &str) {
    fleet.0.pod(annotated(pod("p", "n", "ReplicaSet"), DO_NOT_DISRUPT, value));
}

fn add_pdb(fleet: &mut Fleet, change: impl FnOnce(&mut Pdb)) {
    let mut pdb = pdb("guard", "p", 0);
    pdb.max_unavailable = Some(Bound::Count(0));
    change(&mut pdb);
    fleet.0.apply(WatchedObject::Pdb(pdb));
}

fn set_grace_period(fleet: &mut Fleet) {
    let claim = fleet.0.claim("n");
    claim.record.termination_grace_period = Some(SignedDuration::from_mins(10));
}

/// Moves the other node to a separate pool, and binds a pod to it ten seconds ago.
fn change_other_node(fleet: &mut Fleet, after: Option<SignedDuration>) {
    fleet.configure(|cluster| {
        let mut busy = buying("busy", &[ON_DEMAND]);
        busy.disruption.consolidate_after = after;
        busy.limits.nodes = Some(1);
        cluster.pools.push(busy);
    });
    fleet.node_of("other", "busy", ("s8", "a", ON_DEMAND));
    fleet.pod("q", "other", 6500);
    let mut pod = pod("late", "other", "ReplicaSet");
    pod.requests.cpu_milli = 10;
    let ago = SignedDuration::from_secs(10);
    fleet.0.state.objects.apply(WatchedObject::Pod(Box::new(pod)), NOW - ago);
}

/// Excludes the type `s2`, so that no cheaper node can replace `n`.
fn exclude_small_type(pool: &mut Pool) {
    pool.requirements.add(INSTANCE_TYPE, Requirement::is_in(["s4", "s8"]));
}

const LEAVING: [Row; 21] = [
    ("the pod fits on the other node", |_| {}, "n ->"),
    (
        "another pool has no instance types",
        |it| {
            it.configure(|cluster| {
                let mut empty = pool("empty");
                empty.requirements.add(INSTANCE_TYPE, Requirement::is_in(["none"]));
                cluster.pools.insert(0, empty);
            });
        },
        "n ->",
    ),
    (
        "another pool has contradictory requirements",
        |it| {
            it.configure(|cluster| {
                let mut contradictory = pool("odd");
                contradictory.requirements.add(ZONE, Requirement::is_in(["a"]));
                contradictory.requirements.add(ZONE, Requirement::is_in(["b"]));
                cluster.pools.insert(0, contradictory);
            });
        },
        "n ->",
    ),
    (
        "the other node is unmanaged",
        |it| {
            it.unlabel("other", POOL);
            it.0.state.ledger.claims.remove("other");
        },
        "n ->",
    ),
    (
        "a PodDisruptionBudget never allows the eviction of the pod",
        |it| add_pdb(it, |_| {}),
        "pod_disruption_budget_for_ever",
    ),
    (
        "a PodDisruptionBudget does not allow the eviction now",
        |it| add_pdb(it, |pdb| pdb.max_unavailable = None),
        "pod_disruption_budget",
    ),
    (
        "a PodDisruptionBudget allows the eviction of pods that are not ready",
        |it| {
            add_pdb(it, |pdb| {
                pdb.max_unavailable = None;
                pdb.unready_may_go = true;
            });
            it.pod_as("p", "n", 1000, |pod| pod.ready = Some(false));
        },
        "n ->",
    ),
    (
        "the PodDisruptionBudget is in another namespace",
        |it| add_pdb(it, |pdb| pdb.key.namespace = "elsewhere".to_owned()),
        "n ->",
    ),
    (
        "the node is annotated with do-not-disrupt",
        |it| {
            let note = (DO_NOT_DISRUPT.to_owned(), "true".to_owned());
            it.0.edit("n", |node| node.annotations.extend([note]));
        },
        "do_not_disrupt",
    ),
    (
        "the pod is annotated with do-not-disrupt",
        |it| annotate_pod(it, "true"),
        "pod_do_not_disrupt",
    ),
    (
        "the pod is annotated, and the node has a termination grace period",
        |it| {
            annotate_pod(it, "true");
            set_grace_period(it);
        },
        "pod_do_not_disrupt",
    ),
    (
        "a PodDisruptionBudget covers the pod, and the node has a termination grace period",
        |it| {
            add_pdb(it, |_| {});
            set_grace_period(it);
        },
        "pod_disruption_budget_for_ever",
    ),
    ("no controller would recreate the pod", |it| it.0.pod(pod("p", "n", "")), "unmanaged_pod"),
    (
        "the other node is not initialized",
        |it| {
            it.pool(exclude_small_type);
            it.unlabel("other", INITIALIZED);
            it.0.claim("other").phase = ClaimPhase::Registered;
        },
        "not_cheaper",
    ),
    (
        "the other node has changed recently",
        |it| {
            it.pool(exclude_small_type);
            change_other_node(it, Some(SignedDuration::from_secs(30)));
        },
        "not_cheaper",
    ),
    (
        "the last change of the other node is old enough",
        |it| change_other_node(it, Some(SignedDuration::from_secs(5))),
        "n ->",
    ),
    ("the pool of the other node never consolidates", |it| change_other_node(it, None), "n ->"),
    (
        "the other node has changed recently, and a cheaper type exists",
        |it| change_other_node(it, Some(SignedDuration::from_secs(30))),
        "n -> s2/a/on-demand",
    ),
    (
        "a capacity buffer reserves the other node",
        |it| {
            it.pool(exclude_small_type);
            drop(it.0.state.held.insert("other".into(), "spare".to_owned()));
        },
        "not_cheaper",
    ),
    ("a pending pod fits nowhere", |it| it.waiting("giant", 100_000), "n ->"),
    (
        "another pod of the node would become unschedulable",
        |it| {
            it.pod("wide", "n", 2500);
            it.pool(|pool| pool.limits.nodes = Some(0));
        },
        "no_place",
    ),
];

#[test]
fn node_whose_pods_fit_elsewhere_is_disrupted_unless_blocked() {
    check_rows(two_nodes, &LEAVING);
}

/// The recently changed node is planned for these pods, and nothing is launched for them.
#[test]
fn recently_changed_node_accepts_only_pods_of_draining_nodes() {
    for is_draining in [false, true] {
        let mut fleet = two_nodes();
        fleet.pool(exclude_small_type);
        change_other_node(&mut fleet, Some(SignedDuration::from_secs(30)));
        fleet.node("gone", "s4");
        fleet.pod("mover", "gone", 400);
        if is_draining {
            let claim = fleet.0.claim("gone");
            claim.leaving = Some(Reason::Drifted);
            claim.phase = ClaimPhase::Draining;
            fleet.0.edit("gone", |node| {
                let taint = Taint::new(TAINT_DISRUPTED, Effect::NoSchedule);
                node.taints.push(taint);
            });
        }
        let plan = fleet.plan();
        let moved = plan.placed.iter().flat_map(|(_, pods)| pods);
        let moved = moved.filter(|pod| pod.name == "mover").count();
        let expect = if is_draining { "n ->" } else { "gone ->" };
        assert_eq!((plan_summary(&plan).as_str(), moved), (expect, 1), "{is_draining}");
    }
}

/// A node with eight cores and a pod with one core.
fn large_node(bought: CapacityType) -> Fleet {
    let mut fleet = Fleet::new(sizes(), vec![buying("general", &[bought])]);
    fleet.node_of("n", "general", ("s8", "a", bought));
    fleet.pod("p", "n", 1000);
    fleet
}

const REPLACED: [Row; 9] = [
    ("two cores are sufficient", |_| {}, "n -> s2/a/on-demand"),
    ("the pod requests more", |it| it.pod("p", "n", 3000), "n -> s4/a/on-demand"),
    ("the pod requests most of the node", |it| it.pod("p", "n", 7000), "not_cheaper"),
    (
        "no suitable type is cheaper",
        |it| it.pool(|pool| pool.requirements.add(INSTANCE_TYPE, Requirement::is_in(["s8"]))),
        "not_cheaper",
    ),
    (
        "the pod is annotated with do-not-disrupt",
        |it| annotate_pod(it, "true"),
        "pod_do_not_disrupt",
    ),
    (
        "a PodDisruptionBudget never allows the eviction of the pod",
        |it| add_pdb(it, |_| {}),
        "pod_disruption_budget_for_ever",
    ),
    (
        "the node is annotated with do-not-disrupt",
        |it| {
            let note = (DO_NOT_DISRUPT.to_owned(), "true".to_owned());
            it.0.edit("n", |node| node.annotations.extend([note]));
        },
        "do_not_disrupt",
    ),
    (
        "another pool has no instance types",
        |it| {
            it.configure(|cluster| {
                let mut empty = pool("empty");
                let none = Requirement::is_in(["none"]);
                empty.requirements.add(INSTANCE_TYPE, none);
                empty.weight = 100;
                cluster.pools.push(empty);
            });
        },
        "n -> s2/a/on-demand",
    ),
    (
        "a capacity buffer reserves the node",
        |it| drop(it.0.state.held.insert("n".into(), "spare".to_owned())),
        "buffer",
    ),
];

#[test]
fn node_is_replaced_by_a_cheaper_one_unless_blocked() {
    check_rows(|| large_node(ON_DEMAND), &REPLACED);
    assert_eq!(large_node(SPOT).changes(), "n -> s2/a/spot");
}

/// Twenty equal types, the most expensive first by name, and a spot node of the type with this rank
/// by price.
fn spot_node(rank: usize, wanted: u32) -> Fleet {
    let types = (0..20).map(|at| {
        let price = 0.1 + 0.002 * f64::from(at);
        instance_type(&type_name(at), 4, &[(SPOT, "a", price)])
    });
    let mut general = buying("general", &[SPOT]);
    general.disruption.spot_to_spot_min_types = wanted;
    let mut fleet = Fleet::new(types.collect(), vec![general]);
    let rank = u32::try_from(rank).expect("a small number");
    fleet.node_of("n", "general", (&type_name(rank), "a", SPOT));
    fleet.pod("p", "n", 3000);
    fleet
}

fn type_name(at: u32) -> String {
    format!("t{:02}", 19 - at)
}

fn set_min_values(fleet: &mut Fleet, types: u32) {
    let mut requirement = Requirement::exists();
    requirement.min_values = Some(types);
    fleet.pool(|pool| pool.requirements.add(INSTANCE_TYPE, requirement));
}

/// The types of the replacement of the only node, cheapest first.
fn replacement_types(fleet: &Fleet) -> Vec<String> {
    let plan = fleet.plan();
    let all = plan.launches.iter().flat_map(|launch| &launch.offerings);
    all.map(|(key, _)| key.instance_type.to_string()).collect()
}

#[test]
fn spot_to_spot_replacement_needs_enough_cheaper_types() {
    let cheapest = |count: u32| (0..count).map(type_name).collect::<Vec<String>>();
    for (what, rank, wanted, min_values, expect) in [
        ("the cheapest of many cheaper types", 19, 15, 1, 15),
        ("too few types are cheaper", 15, 15, 1, 0),
        ("the node has one of the cheapest types", 10, 15, 1, 0),
        ("spot-to-spot replacement is disabled", 19, 0, 1, 0),
        ("one type is sufficient, and all are offered", 19, 1, 1, 17),
        ("the min_values of the pool are higher", 19, 15, 16, 16),
        ("the min_values of the pool are lower", 19, 15, 5, 15),
        ("the min_values of the pool exceed the cheaper types", 19, 15, 18, 0),
    ] {
        let mut fleet = spot_node(rank, wanted);
        set_min_values(&mut fleet, min_values);
        assert_eq!(replacement_types(&fleet), cheapest(expect), "{what}");
        let keeps = if expect == 0 { "too_few_replacement_types" } else { "-" };
        assert_eq!(fleet.retaining_code("n"), keeps, "{what}");
    }
}

#[test]
fn other_nodes_are_disrupted_if_one_cannot_be_replaced() {
    let mut fleet = spot_node(1, 25);
    let gold = [instance_type("gold", 4, &[(SPOT, "a", 3.0)])];
    let catalog = fleet.0.state.catalog.with(gold);
    fleet.0.state.apply_catalog(catalog.into());
    fleet.node_of("dear", "general", ("gold", "a", SPOT));
    fleet.pod("wide", "dear", 4000);
    fleet.node_of("other", "general", (&type_name(1), "a", SPOT));
    fleet.pod("little", "other", 500);
    assert_eq!(fleet.changes(), "other ->");
    assert_eq!(fleet.retaining_code("dear"), "too_few_replacement_types");
}

/// Two suitable types are cheaper than the node, or one.
#[test]
fn replacement_needs_min_values_of_cheaper_types() {
    let types = || -> Vec<InstanceType> {
        [("one", 0.1), ("two", 0.3), ("three", 0.4)]
            .map(|(name, price)| instance_type(name, 4, &[(ON_DEMAND, "a", price)]))
            .into()
    };
    for policy in [MinValuesPolicy::Strict, MinValuesPolicy::BestEffort] {
        for (of, wanted, expect) in [
            ("three", 1, "n -> one/a/on-demand"),
            ("three", 2, "n -> one/a/on-demand"),
            ("two", 2, ""),
            ("three", 3, ""),
            ("three", 4, ""),
        ] {
            let mut fleet = Fleet::new(types(), vec![buying("general", &[ON_DEMAND])]);
            fleet.configure(|cluster| {
                cluster.scheduling.min_values = policy;
                cluster.scheduling.alternative_price_percent = 1000;
            });
            fleet.node("n", of);
            fleet.pod("p", "n", 3000);
            set_min_values(&mut fleet, wanted);
            assert_eq!(fleet.changes(), expect, "{of} {wanted} {policy:?}");
            // The same holds for several nodes at once.
            fleet.node("m", of);
            fleet.pod("q", "m", 3000);
            let both =
                expect.replace("n -> one/a/on-demand", "m n -> one/a/on-demand one/a/on-demand");
            assert_eq!(fleet.changes(), both, "{of} {wanted} {policy:?}");
        }
    }
}

#[test]
fn every_replacement_offering_is_cheaper_than_the_node() {
    for (what, of, offers, expect) in [
        (
            "spot is cheaper in one zone only",
            ON_DEMAND,
            &[(SPOT, "a", 0.3), (SPOT, "b", 0.45)][..],
            &["a"][..],
        ),
        (
            "spot is cheaper in both zones",
            ON_DEMAND,
            &[(SPOT, "a", 0.3), (SPOT, "b", 0.35)],
            &["a", "b"],
        ),
        ("spot is more expensive", SPOT, &[(SPOT, "a", 0.41)], &[]),
        ("on-demand has the same price", ON_DEMAND, &[(ON_DEMAND, "a", 0.4)], &[]),
        ("on-demand is more expensive", ON_DEMAND, &[(ON_DEMAND, "a", 0.5)], &[]),
    ] {
        let offers: &[OfferingSpec] = offers;
        let types = vec![
            instance_type("new", 4, offers),
            instance_type("old", 4, &[(ON_DEMAND, "a", 0.4), (SPOT, "a", 0.4)]),
        ];
        let mut fleet = Fleet::new(types, vec![buying("general", &[ON_DEMAND, SPOT])]);
        fleet.node_of("n", "general", ("old", "a", of));
        fleet.pod("p", "n", 3000);
        let plan = fleet.plan();
        let all = plan.launches.iter().flat_map(|launch| &launch.offerings);
        let zones: Vec<&str> = all.map(|(key, _)| key.zone.as_str()).collect();
        assert_eq!(zones, expect, "{what}");
    }
}

#[test]
fn several_nodes_are_replaced_by_fewer_nodes() {
    // One node with eight cores is cheaper than three with two cores.
    let types = || -> Vec<InstanceType> {
        let price = |name, cores, price| {
            instance_type(name, cores, &[(ON_DEMAND, "a", price), (SPOT, "a", price * 0.9)])
        };
        vec![price("s2", 2, 0.2), price("s8", 8, 0.4)]
    };
    for (what, bought, pods, expect) in [
        ("on-demand nodes", [ON_DEMAND; 3], 1900, "a b c -> s8/a/spot"),
        ("spot nodes", [SPOT; 3], 1900, "a b c -> s8/a/spot"),
        ("both capacity types", [SPOT, ON_DEMAND, SPOT], 1900, "a b c -> s8/a/spot"),
        // Two existing nodes have enough capacity for all pods.
        ("free capacity on the other nodes", [SPOT; 3], 900, "a ->"),
    ] {
        let mut fleet = Fleet::new(types(), vec![buying("general", &[ON_DEMAND, SPOT])]);
        // The minimum number of types applies only to the replacement of a single node.
        fleet.pool(|pool| pool.disruption.spot_to_spot_min_types = 15);
        for (name, bought) in ["a", "b", "c"].into_iter().zip(bought) {
            fleet.node_of(name, "general", ("s2", "a", bought));
            fleet.pod(name, name, pods);
        }
        assert_eq!(fleet.changes(), expect, "{what}");
    }
}

/// Nodes with enough capacity for the pods of one more, of which one may be disrupted at a time.
fn one_at_a_time(pools: [Consolidation; 2]) -> Fleet {
    let [mut general, mut others] = ["general", "others"].map(|name| buying(name, &[ON_DEMAND]));
    (general.disruption.consolidation, others.disruption.consolidation) = (pools[0], pools[1]);
    let mut fleet = Fleet::new(sizes(), vec![general, others]);
    fleet.configure(|cluster| {
        let mut one = cluster.pools[0].disruption.budgets[0].clone();
        one.nodes = BudgetNodes::Nodes(1);
        cluster.disruption.budgets = vec![one];
    });
    for name in ["a", "b", "c"] {
        fleet.node(name, "s4");
    }
    fleet.node_of("big", "others", ("s8", "a", ON_DEMAND));
    fleet.pod("large", "big", 7000);
    fleet
}

#[test]
fn node_with_the_best_savings_per_disruption_is_first() {
    use Consolidation::{Balanced, EmptyOrUnderutilized};
    let all = [EmptyOrUnderutilized, Balanced];
    let mixes = all.iter().flat_map(|one| all.map(|other| [*one, other]));
    for mix in mixes {
        // Equal nodes with one, two and three pods.
        let mut fleet = one_at_a_time(mix);
        fleet.node_of("b", "others", ("s4", "a", ON_DEMAND));
        for (name, pods) in [("a", 3), ("b", 1), ("c", 2)] {
            for at in 0..pods {
                fleet.pod(&format!("{name}-{at}"), name, 300);
            }
        }
        assert_eq!(fleet.changes(), "b ->", "{mix:?}");
        // Equal pods, on a more expensive node.
        let mut fleet = one_at_a_time(mix);
        for name in ["a", "b", "c"] {
            fleet.pod(name, name, 300);
        }
        fleet.node("b", "s8");
        assert_eq!(fleet.changes(), "b ->", "{mix:?}");
        // Pods with a high deletion cost raise the disruption cost.
        let mut fleet = one_at_a_time(mix);
        for name in ["a", "b", "c"] {
            let cost = if name == "c" { "-67108864" } else { "67108864" };
            fleet.pod_as(name, name, 300, |pod| {
                let key = "controller.kubernetes.io/pod-deletion-cost".to_owned();
                pod.annotations.insert(key, cost.to_owned());
            });
        }
        assert_eq!(fleet.changes(), "c ->", "{mix:?}");
    }
}

#[test]
fn budgets_limit_simultaneous_consolidations() {
    let budget = |fleet: &mut Fleet, name: &str, nodes: BudgetNodes| {
        fleet.configure(|cluster| {
            let mut pools = cluster.pools.iter_mut();
            let pool = pools.find(|pool| pool.name.as_str() == name);
            pool.expect("a pool").disruption.budgets[0].nodes = nodes;
        });
    };
    let ten_nodes = |nodes: BudgetNodes| {
        let pools = ["general", "others"].map(|name| buying(name, &[ON_DEMAND]));
        let mut fleet = Fleet::new(sizes(), pools.into());
        for at in 0..10 {
            let pool = if at < 5 { "general" } else { "others" };
            fleet.node_of(&format!("n{at}"), pool, ("s4", "a", ON_DEMAND));
            fleet.pod(&format!("p{at}"), &format!("n{at}"), 100);
        }
        budget(&mut fleet, "general", nodes);
        budget(&mut fleet, "others", nodes);
        fleet
    };
    for (nodes, expect) in [
        (BudgetNodes::Nodes(0), [0, 0]),
        (BudgetNodes::Nodes(3), [3, 3]),
        (BudgetNodes::Percent(40), [2, 2]),
        (BudgetNodes::Percent(0), [0, 0]),
    ] {
        let fleet = ten_nodes(nodes);
        let plan = fleet.plan();
        let count =
            |of: &str| plan.retire.iter().filter(|disrupted| disrupted.pool.as_str() == of).count();
        assert_eq!(["general", "others"].map(count), expect, "{nodes:?}");
        // The other nodes are retained by the budget, not as unprofitable.
        let waits = plan.kept.iter().filter(|retained| retained.verdict.code() == "budget");
        assert!(waits.count() > 0, "{nodes:?}: {:?}", plan.kept);
    }
    // At most one of the ten nodes remains, or it is replaced by a smaller one.
    let plan = ten_nodes(BudgetNodes::Percent(100)).plan();
    assert!(plan.retire.len() >= 9, "{:?}", plan.kept);
    // The budget of one pool does not apply to the other.
    let mut fleet = ten_nodes(BudgetNodes::Nodes(0));
    budget(&mut fleet, "others", BudgetNodes::Nodes(2));
    assert_eq!(fleet.plan().retire.len(), 2);
}

/// Nodes with eight cores, each with one pod, which must not share a node.
#[test]
fn budgets_limit_simultaneous_replacements() {
    for (nodes, expect) in [(0, 0), (1, 1), (3, 3), (5, 5)] {
        let mut fleet = Fleet::plain();
        fleet.pool(|pool| pool.disruption.budgets[0].nodes = BudgetNodes::Nodes(nodes));
        for at in 0..5 {
            fleet.node(&format!("n{at}"), "s8");
            fleet.pod_as(&format!("p{at}"), &format!("n{at}"), 1000, |pod| {
                pod.labels = app("web");
                pod.anti_affinity = vec![term("web", HOSTNAME)];
            });
        }
        let plan = fleet.plan();
        let counts = (plan.retire.len(), plan.launches.len());
        assert_eq!(counts, (expect, expect), "{}", plan_summary(&plan));
    }
}

fn term(of: &str, key: &str) -> PodTerm {
    PodTerm {
        selector: Some(Selector::from_labels(&app(of))),
        namespaces: ["default".to_owned()].into(),
        topology_key: key.to_owned(),
        ..PodTerm::default()
    }
}

fn preferred<T>(term: T) -> Vec<Preferred<T>> {
    vec![Preferred { weight: 1, term }]
}

/// Gives the pod a preferred anti-affinity to the pod on the other node.
fn prefer_separation(fleet: &mut Fleet, policy: PreferencePolicy) {
    fleet.pod_as("p", "n", 1000, |pod| {
        pod.preferred_anti_affinity = preferred(term("q", HOSTNAME));
    });
    fleet.configure(|cluster| cluster.scheduling.preferences = policy);
}

const PLACES: [Row; 5] = [
    (
        "the pod has anti-affinity to the pod on the other node",
        |it| {
            it.pool(exclude_small_type);
            it.pod_as("p", "n", 1000, |pod| {
                pod.anti_affinity = vec![term("q", HOSTNAME)];
            });
        },
        "not_cheaper",
    ),
    (
        "the pod on the other node has anti-affinity to the pod",
        |it| {
            it.pool(exclude_small_type);
            it.pod_as("q", "other", 7000, |pod| {
                pod.anti_affinity = vec![term("p", HOSTNAME)];
            });
        },
        "not_cheaper",
    ),
    (
        "the pod has preferred anti-affinity, and preferences are respected",
        |it| {
            it.pool(exclude_small_type);
            prefer_separation(it, PreferencePolicy::Respect);
        },
        "not_cheaper",
    ),
    (
        "the pod has preferred anti-affinity, and preferences are ignored",
        |it| {
            it.pool(exclude_small_type);
            prefer_separation(it, PreferencePolicy::Ignore);
        },
        "n ->",
    ),
    (
        "the pod prefers the larger type, and preferences are ignored",
        |it| {
            it.configure(|cluster| cluster.scheduling.preferences = PreferencePolicy::Ignore);
            it.pod_as("p", "n", 3000, |pod| {
                let of = Requirement::is_in(["s8"]);
                pod.preferred_nodes = preferred([(INSTANCE_TYPE, of)].into_iter().collect());
            });
            it.node("n", "s8");
        },
        "n -> s4/a/on-demand",
    ),
];

#[test]
fn pod_constraints_on_other_pods_can_prevent_consolidation() {
    check_rows(two_nodes, &PLACES);
}

#[test]
fn replacement_preserves_topology_spread_over_zones() {
    let mut fleet = Fleet::plain();
    let spread = TopologySpread {
        selector: Some(Selector::from_labels(&app("web"))),
        topology_key: ZONE.to_owned(),
        max_skew: 1,
        min_domains: 1,
        honors_affinity: true,
        honors_taints: false,
        is_hard: true,
    };
    let size = [("n", "b", "s8"), ("m", "a", "s2")];
    for (name, zone, of) in size {
        fleet.node_of(name, "general", (of, zone, ON_DEMAND));
        fleet.pod_as(&format!("{name}-web"), name, 1500, |pod| {
            pod.labels = app("web");
            pod.spread = vec![spread.clone()];
        });
    }
    assert_eq!(fleet.changes(), "n -> s2/b/on-demand");
}

/// Reserved capacity is already paid: its price only orders expensive and cheap types.
#[test]
fn consolidation_uses_reserved_capacity_of_cheaper_types_first() {
    let types = || {
        let reservable = |name, cores, price: f64| {
            instance_type(
                name,
                cores,
                &[(RESERVED, "a", price / 1e7), (ON_DEMAND, "a", price), (SPOT, "a", price / 3.0)],
            )
        };
        vec![
            reservable("r4", 4, 0.4),
            instance_type("s4", 4, &[(ON_DEMAND, "a", 0.3), (SPOT, "a", 0.1)]),
            reservable("r8", 8, 0.8),
        ]
    };
    for (what, of, expect) in [
        ("a larger reserved type", ("r8", "a", RESERVED), "n -> r4/a/reserved"),
        ("on-demand, of the same type", ("r4", "a", ON_DEMAND), "n -> r4/a/reserved"),
        ("spot, of the same type", ("r4", "a", SPOT), "n -> r4/a/reserved"),
        ("the cheapest reserved type", ("r4", "a", RESERVED), ""),
    ] {
        let mut fleet = Fleet::new(types(), vec![buying("general", &[RESERVED, ON_DEMAND, SPOT])]);
        fleet.node_of("n", "general", of);
        fleet.pod("p", "n", 3000);
        assert_eq!(fleet.changes(), expect, "{what}");
    }
}

/// The verdicts of a node that is known only by its labels.
#[test]
fn retained_node_has_the_verdict_code_of_its_obstacle() {
    let rows: [Row; 9] = [
        ("the pool allows consolidation", |_| {}, "-"),
        (
            "the pool consolidates only empty nodes",
            |it| it.pool(|pool| pool.disruption.consolidation = Consolidation::Empty),
            "empty_only",
        ),
        (
            "the pool never consolidates",
            |it| it.pool(|pool| pool.disruption.consolidate_after = None),
            "never",
        ),
        ("the pool is static", |it| it.pool(|pool| pool.replicas = Some(2)), "static"),
        ("the type is unknown", |it| it.node("n", "s3"), "price_unknown"),
        ("the node has no type", |it| it.unlabel("n", INSTANCE_TYPE), "price_unknown"),
        ("the node has no capacity type", |it| it.unlabel("n", CAPACITY_TYPE), "price_unknown"),
        ("the node has no zone", |it| it.unlabel("n", ZONE), "price_unknown"),
        ("the node is empty, not underutilized", |it| it.pod("p", "other", 1000), "empty"),
    ];
    for (what, change, expect) in rows {
        let mut fleet = two_nodes();
        change(&mut fleet);
        let plan = fleet.plan_by_labels();
        assert_eq!(retaining_code(&plan, "n"), expect, "{what}");
        let is_disrupted = plan.retire.iter().any(|disrupted| disrupted.node.as_str() == "n");
        assert_eq!(is_disrupted, expect == "-", "{what}");
    }
}

#[test]
fn consolidation_uses_overlay_prices() {
    for (of, adjustment, expect) in [
        ("new", "+1%", "n -> new/a/on-demand"),
        ("new", "+50%", ""),
        ("old", "-50%", ""),
        ("other", "-90%", "n -> other/a/on-demand"),
    ] {
        let types = [("old", 0.4), ("new", 0.3), ("other", 0.5)];
        let types = types.map(|(name, price)| instance_type(name, 4, &[(ON_DEMAND, "a", price)]));
        let mut fleet = Fleet::new(types.into(), vec![buying("general", &[ON_DEMAND])]);
        let mut overlay = Overlay {
            name: "ours".to_owned(),
            price: PriceAdjustment::parse(adjustment).ok(),
            ..Overlay::default()
        };
        let wanted = Requirement::is_in([of]);
        overlay.requirements.add(INSTANCE_TYPE, wanted);
        fleet.configure(|cluster| cluster.overlays = vec![overlay]);
        fleet.node("n", "old");
        fleet.pod("p", "n", 3000);
        assert_eq!(fleet.changes(), expect, "{of} {adjustment}");
    }
}
