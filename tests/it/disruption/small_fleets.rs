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
    ON_DEMAND, Offer, RESERVED, SPOT, Yard, app, buying, code, kind, shown, sizes,
};
use super::fixture::{NOW, annotated, pdb, pod, pool};

/// A change of the fleet, and its result: the disrupted nodes and their replacements, or the code
/// of the verdict that retains `n`.
type Row = (&'static str, fn(&mut Yard), &'static str);

fn check(base: fn() -> Yard, rows: &[Row]) {
    for (what, change, expect) in rows {
        let mut yard = base();
        change(&mut yard);
        let moves = yard.moves();
        let found = if moves.is_empty() { yard.keeps("n").to_owned() } else { moves };
        assert_eq!(found, *expect, "{what}: {:?}", yard.plan().kept);
    }
}

/// A node with four cores and a pod with one core, and another node that has capacity for just this
/// pod.
fn two() -> Yard {
    let mut yard = Yard::plain();
    yard.node("n", "s4");
    yard.pod("p", "n", 1000);
    yard.node("other", "s8");
    yard.pod("q", "other", 7000);
    yard
}

fn forbid(yard: &mut Yard, value: &str) {
    yard.0.pod(annotated(pod("p", "n", "ReplicaSet"), DO_NOT_DISRUPT, value));
}

fn cover(yard: &mut Yard, change: impl FnOnce(&mut Pdb)) {
    let mut own = pdb("guard", "p", 0);
    own.max_unavailable = Some(Bound::Count(0));
    change(&mut own);
    yard.0.apply(WatchedObject::Pdb(own));
}

fn grace(yard: &mut Yard) {
    let claim = yard.0.claim("n");
    claim.record.termination_grace_period = Some(SignedDuration::from_mins(10));
}

/// Moves the other node to a separate pool, and binds a pod to it ten seconds ago.
fn restless(yard: &mut Yard, after: Option<SignedDuration>) {
    yard.configure(|own| {
        let mut busy = buying("busy", &[ON_DEMAND]);
        busy.disruption.consolidate_after = after;
        busy.limits.nodes = Some(1);
        own.pools.push(busy);
    });
    yard.node_of("other", "busy", ("s8", "a", ON_DEMAND));
    yard.pod("q", "other", 6500);
    let mut own = pod("late", "other", "ReplicaSet");
    own.requests.cpu_milli = 10;
    let ago = SignedDuration::from_secs(10);
    yard.0.state.objects.apply(WatchedObject::Pod(Box::new(own)), NOW - ago);
}

/// Excludes the type `s2`, so that no cheaper node can replace `n`.
fn alone(pool: &mut Pool) {
    pool.requirements.add(INSTANCE_TYPE, Requirement::is_in(["s4", "s8"]));
}

const LEAVING: [Row; 21] = [
    ("the pod fits on the other node", |_| {}, "n ->"),
    (
        "another pool has no instance types",
        |it| {
            it.configure(|own| {
                let mut empty = pool("empty");
                empty.requirements.add(INSTANCE_TYPE, Requirement::is_in(["none"]));
                own.pools.insert(0, empty);
            });
        },
        "n ->",
    ),
    (
        "another pool has contradictory requirements",
        |it| {
            it.configure(|own| {
                let mut odd = pool("odd");
                odd.requirements.add(ZONE, Requirement::is_in(["a"]));
                odd.requirements.add(ZONE, Requirement::is_in(["b"]));
                own.pools.insert(0, odd);
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
        |it| cover(it, |_| {}),
        "pod_disruption_budget_for_ever",
    ),
    (
        "a PodDisruptionBudget does not allow the eviction now",
        |it| cover(it, |own| own.max_unavailable = None),
        "pod_disruption_budget",
    ),
    (
        "a PodDisruptionBudget allows the eviction of pods that are not ready",
        |it| {
            cover(it, |own| {
                own.max_unavailable = None;
                own.unready_may_go = true;
            });
            it.pod_as("p", "n", 1000, |pod| pod.ready = Some(false));
        },
        "n ->",
    ),
    (
        "the PodDisruptionBudget is in another namespace",
        |it| cover(it, |own| own.key.namespace = "elsewhere".to_owned()),
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
    ("the pod is annotated with do-not-disrupt", |it| forbid(it, "true"), "pod_do_not_disrupt"),
    (
        "the pod is annotated, and the node has a termination grace period",
        |it| {
            forbid(it, "true");
            grace(it);
        },
        "pod_do_not_disrupt",
    ),
    (
        "a PodDisruptionBudget covers the pod, and the node has a termination grace period",
        |it| {
            cover(it, |_| {});
            grace(it);
        },
        "pod_disruption_budget_for_ever",
    ),
    ("no controller would recreate the pod", |it| it.0.pod(pod("p", "n", "")), "unmanaged_pod"),
    (
        "the other node is not initialized",
        |it| {
            it.pool(alone);
            it.unlabel("other", INITIALIZED);
            it.0.claim("other").phase = ClaimPhase::Registered;
        },
        "not_cheaper",
    ),
    (
        "the other node has changed recently",
        |it| {
            it.pool(alone);
            restless(it, Some(SignedDuration::from_secs(30)));
        },
        "not_cheaper",
    ),
    (
        "the last change of the other node is old enough",
        |it| restless(it, Some(SignedDuration::from_secs(5))),
        "n ->",
    ),
    ("the pool of the other node never consolidates", |it| restless(it, None), "n ->"),
    (
        "the other node has changed recently, and a cheaper type exists",
        |it| restless(it, Some(SignedDuration::from_secs(30))),
        "n -> s2/a/on-demand",
    ),
    (
        "a capacity buffer reserves the other node",
        |it| {
            it.pool(alone);
            drop(it.0.state.held.insert("other".into(), "spare".to_owned()));
        },
        "not_cheaper",
    ),
    ("a pending pod fits nowhere", |it| it.waiting("giant", 100_000), "n ->"),
    (
        "another pod of the node would become unschedulable",
        |it| {
            it.pod("wide", "n", 2500);
            it.pool(|own| own.limits.nodes = Some(0));
        },
        "no_place",
    ),
];

#[test]
fn a_node_leaves_whose_pods_fit_elsewhere_and_any_other_says_why_not() {
    check(two, &LEAVING);
}

/// The recently changed node is planned for these pods, and nothing is launched for them.
#[test]
fn pods_of_a_node_that_leaves_already_may_go_where_others_may_not() {
    for leaving in [false, true] {
        let mut yard = two();
        yard.pool(alone);
        restless(&mut yard, Some(SignedDuration::from_secs(30)));
        yard.node("gone", "s4");
        yard.pod("mover", "gone", 400);
        if leaving {
            let claim = yard.0.claim("gone");
            claim.leaving = Some(Reason::Drifted);
            claim.phase = ClaimPhase::Draining;
            yard.0.edit("gone", |node| {
                let taint = Taint::new(TAINT_DISRUPTED, Effect::NoSchedule);
                node.taints.push(taint);
            });
        }
        let plan = yard.plan();
        let moved = plan.placed.iter().flat_map(|(_, pods)| pods);
        let moved = moved.filter(|pod| pod.name == "mover").count();
        let expect = if leaving { "n ->" } else { "gone ->" };
        assert_eq!((shown(&plan).as_str(), moved), (expect, 1), "{leaving}");
    }
}

/// A node with eight cores and a pod with one core.
fn large(bought: CapacityType) -> Yard {
    let mut yard = Yard::new(sizes(), vec![buying("general", &[bought])]);
    yard.node_of("n", "general", ("s8", "a", bought));
    yard.pod("p", "n", 1000);
    yard
}

const REPLACED: [Row; 9] = [
    ("two cores are sufficient", |_| {}, "n -> s2/a/on-demand"),
    ("the pod requests more", |it| it.pod("p", "n", 3000), "n -> s4/a/on-demand"),
    ("the pod requests most of the node", |it| it.pod("p", "n", 7000), "not_cheaper"),
    (
        "no suitable type is cheaper",
        |it| it.pool(|own| own.requirements.add(INSTANCE_TYPE, Requirement::is_in(["s8"]))),
        "not_cheaper",
    ),
    ("the pod is annotated with do-not-disrupt", |it| forbid(it, "true"), "pod_do_not_disrupt"),
    (
        "a PodDisruptionBudget never allows the eviction of the pod",
        |it| cover(it, |_| {}),
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
            it.configure(|own| {
                let mut empty = pool("empty");
                let none = Requirement::is_in(["none"]);
                empty.requirements.add(INSTANCE_TYPE, none);
                empty.weight = 100;
                own.pools.push(empty);
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
fn a_node_makes_way_for_a_cheaper_one_and_any_other_says_why_not() {
    check(|| large(ON_DEMAND), &REPLACED);
    assert_eq!(large(SPOT).moves(), "n -> s2/a/spot");
}

/// Twenty equal types, the most expensive first by name, and a spot node of the type with this rank
/// by price.
fn spot(own: usize, wanted: u32) -> Yard {
    let types = (0..20).map(|at| {
        let price = 0.1 + 0.002 * f64::from(at);
        kind(&type_name(at), 4, &[(SPOT, "a", price)])
    });
    let mut general = buying("general", &[SPOT]);
    general.disruption.spot_to_spot_min_types = wanted;
    let mut yard = Yard::new(types.collect(), vec![general]);
    let own = u32::try_from(own).expect("a small number");
    yard.node_of("n", "general", (&type_name(own), "a", SPOT));
    yard.pod("p", "n", 3000);
    yard
}

fn type_name(at: u32) -> String {
    format!("t{:02}", 19 - at)
}

fn wants(yard: &mut Yard, types: u32) {
    let mut own = Requirement::exists();
    own.min_values = Some(types);
    yard.pool(|pool| pool.requirements.add(INSTANCE_TYPE, own));
}

/// The types of the replacement of the only node, cheapest first.
fn choice(yard: &Yard) -> Vec<String> {
    let plan = yard.plan();
    let all = plan.launches.iter().flat_map(|own| &own.offerings);
    all.map(|(own, _)| own.instance_type.to_string()).collect()
}

#[test]
fn spot_makes_way_for_spot_where_there_is_enough_to_choose_from() {
    let cheapest = |count: u32| (0..count).map(type_name).collect::<Vec<String>>();
    for (what, own, wanted, min_values, expect) in [
        ("the cheapest of many cheaper types", 19, 15, 1, 15),
        ("too few types are cheaper", 15, 15, 1, 0),
        ("the node has one of the cheapest types", 10, 15, 1, 0),
        ("spot-to-spot replacement is disabled", 19, 0, 1, 0),
        ("one type is sufficient, and all are offered", 19, 1, 1, 17),
        ("the min_values of the pool are higher", 19, 15, 16, 16),
        ("the min_values of the pool are lower", 19, 15, 5, 15),
        ("the min_values of the pool exceed the cheaper types", 19, 15, 18, 0),
    ] {
        let mut yard = spot(own, wanted);
        wants(&mut yard, min_values);
        assert_eq!(choice(&yard), cheapest(expect), "{what}");
        let keeps = if expect == 0 { "too_few_replacement_types" } else { "-" };
        assert_eq!(yard.keeps("n"), keeps, "{what}");
    }
}

#[test]
fn where_nothing_may_come_in_the_place_of_one_others_leave() {
    let mut yard = spot(1, 25);
    let gold = [kind("gold", 4, &[(SPOT, "a", 3.0)])];
    let catalog = yard.0.state.catalog.with(gold);
    yard.0.state.apply_catalog(catalog.into());
    yard.node_of("dear", "general", ("gold", "a", SPOT));
    yard.pod("wide", "dear", 4000);
    yard.node_of("other", "general", (&type_name(1), "a", SPOT));
    yard.pod("little", "other", 500);
    assert_eq!(yard.moves(), "other ->");
    assert_eq!(yard.keeps("dear"), "too_few_replacement_types");
}

/// Two suitable types are cheaper than the node, or one.
#[test]
fn what_is_cheaper_comes_only_as_long_as_it_has_as_many_types_as_the_pool_wants() {
    let types = || -> Vec<InstanceType> {
        [("one", 0.1), ("two", 0.3), ("three", 0.4)]
            .map(|(name, price)| kind(name, 4, &[(ON_DEMAND, "a", price)]))
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
            let mut yard = Yard::new(types(), vec![buying("general", &[ON_DEMAND])]);
            yard.configure(|own| {
                own.scheduling.min_values = policy;
                own.scheduling.alternative_price_percent = 1000;
            });
            yard.node("n", of);
            yard.pod("p", "n", 3000);
            wants(&mut yard, wanted);
            assert_eq!(yard.moves(), expect, "{of} {wanted} {policy:?}");
            // The same holds for several nodes at once.
            yard.node("m", of);
            yard.pod("q", "m", 3000);
            let both =
                expect.replace("n -> one/a/on-demand", "m n -> one/a/on-demand one/a/on-demand");
            assert_eq!(yard.moves(), both, "{of} {wanted} {policy:?}");
        }
    }
}

#[test]
fn whatever_is_launched_costs_less_than_what_leaves() {
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
        let offers: &[Offer] = offers;
        let types = vec![
            kind("new", 4, offers),
            kind("old", 4, &[(ON_DEMAND, "a", 0.4), (SPOT, "a", 0.4)]),
        ];
        let mut yard = Yard::new(types, vec![buying("general", &[ON_DEMAND, SPOT])]);
        yard.node_of("n", "general", ("old", "a", of));
        yard.pod("p", "n", 3000);
        let plan = yard.plan();
        let all = plan.launches.iter().flat_map(|own| &own.offerings);
        let zones: Vec<&str> = all.map(|(own, _)| own.zone.as_str()).collect();
        assert_eq!(zones, expect, "{what}");
    }
}

#[test]
fn many_nodes_become_fewer_but_none_of_their_own_type_in_vain() {
    // One node with eight cores is cheaper than three with two cores.
    let types = || -> Vec<InstanceType> {
        let price = |name, cores, price| {
            kind(name, cores, &[(ON_DEMAND, "a", price), (SPOT, "a", price * 0.9)])
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
        let mut yard = Yard::new(types(), vec![buying("general", &[ON_DEMAND, SPOT])]);
        // The minimum number of types applies only to the replacement of a single node.
        yard.pool(|own| own.disruption.spot_to_spot_min_types = 15);
        for (name, bought) in ["a", "b", "c"].into_iter().zip(bought) {
            yard.node_of(name, "general", ("s2", "a", bought));
            yard.pod(name, name, pods);
        }
        assert_eq!(yard.moves(), expect, "{what}");
    }
}

/// Nodes with enough capacity for the pods of one more, of which one may be disrupted at a time.
fn one_at_a_time(pools: [Consolidation; 2]) -> Yard {
    let [mut general, mut others] = ["general", "others"].map(|name| buying(name, &[ON_DEMAND]));
    (general.disruption.consolidation, others.disruption.consolidation) = (pools[0], pools[1]);
    let mut yard = Yard::new(sizes(), vec![general, others]);
    yard.configure(|own| {
        let mut one = own.pools[0].disruption.budgets[0].clone();
        one.nodes = BudgetNodes::Nodes(1);
        own.disruption.budgets = vec![one];
    });
    for name in ["a", "b", "c"] {
        yard.node(name, "s4");
    }
    yard.node_of("big", "others", ("s8", "a", ON_DEMAND));
    yard.pod("large", "big", 7000);
    yard
}

#[test]
fn the_node_leaves_first_that_saves_most_for_what_it_disrupts() {
    use Consolidation::{Balanced, EmptyOrUnderutilized};
    let all = [EmptyOrUnderutilized, Balanced];
    let mixes = all.iter().flat_map(|one| all.map(|other| [*one, other]));
    for mix in mixes {
        // Equal nodes with one, two and three pods.
        let mut yard = one_at_a_time(mix);
        yard.node_of("b", "others", ("s4", "a", ON_DEMAND));
        for (name, pods) in [("a", 3), ("b", 1), ("c", 2)] {
            for at in 0..pods {
                yard.pod(&format!("{name}-{at}"), name, 300);
            }
        }
        assert_eq!(yard.moves(), "b ->", "{mix:?}");
        // Equal pods, on a more expensive node.
        let mut yard = one_at_a_time(mix);
        for name in ["a", "b", "c"] {
            yard.pod(name, name, 300);
        }
        yard.node("b", "s8");
        assert_eq!(yard.moves(), "b ->", "{mix:?}");
        // Pods with a high deletion cost raise the disruption cost.
        let mut yard = one_at_a_time(mix);
        for name in ["a", "b", "c"] {
            let cost = if name == "c" { "-67108864" } else { "67108864" };
            yard.pod_as(name, name, 300, |pod| {
                let key = "controller.kubernetes.io/pod-deletion-cost".to_owned();
                pod.annotations.insert(key, cost.to_owned());
            });
        }
        assert_eq!(yard.moves(), "c ->", "{mix:?}");
    }
}

#[test]
fn as_many_nodes_leave_together_as_budgets_let_go() {
    let budget = |yard: &mut Yard, name: &str, nodes: BudgetNodes| {
        yard.configure(|own| {
            let mut pools = own.pools.iter_mut();
            let pool = pools.find(|own| own.name.as_str() == name);
            pool.expect("a pool").disruption.budgets[0].nodes = nodes;
        });
    };
    let fleet = |nodes: BudgetNodes| {
        let pools = ["general", "others"].map(|name| buying(name, &[ON_DEMAND]));
        let mut yard = Yard::new(sizes(), pools.into());
        for at in 0..10 {
            let pool = if at < 5 { "general" } else { "others" };
            yard.node_of(&format!("n{at}"), pool, ("s4", "a", ON_DEMAND));
            yard.pod(&format!("p{at}"), &format!("n{at}"), 100);
        }
        budget(&mut yard, "general", nodes);
        budget(&mut yard, "others", nodes);
        yard
    };
    for (nodes, expect) in [
        (BudgetNodes::Nodes(0), [0, 0]),
        (BudgetNodes::Nodes(3), [3, 3]),
        (BudgetNodes::Percent(40), [2, 2]),
        (BudgetNodes::Percent(0), [0, 0]),
    ] {
        let yard = fleet(nodes);
        let plan = yard.plan();
        let count = |of: &str| plan.retire.iter().filter(|own| own.pool.as_str() == of).count();
        assert_eq!(["general", "others"].map(count), expect, "{nodes:?}");
        // The other nodes are retained by the budget, not as unprofitable.
        let waits = plan.kept.iter().filter(|own| own.verdict.code() == "budget");
        assert!(waits.count() > 0, "{nodes:?}: {:?}", plan.kept);
    }
    // At most one of the ten nodes remains, or it is replaced by a smaller one.
    let plan = fleet(BudgetNodes::Percent(100)).plan();
    assert!(plan.retire.len() >= 9, "{:?}", plan.kept);
    // The budget of one pool does not apply to the other.
    let mut yard = fleet(BudgetNodes::Nodes(0));
    budget(&mut yard, "others", BudgetNodes::Nodes(2));
    assert_eq!(yard.plan().retire.len(), 2);
}

/// Nodes with eight cores, each with one pod, which must not share a node.
#[test]
fn as_many_nodes_are_replaced_as_budgets_let_go() {
    for (nodes, expect) in [(0, 0), (1, 1), (3, 3), (5, 5)] {
        let mut yard = Yard::plain();
        yard.pool(|own| own.disruption.budgets[0].nodes = BudgetNodes::Nodes(nodes));
        for at in 0..5 {
            yard.node(&format!("n{at}"), "s8");
            yard.pod_as(&format!("p{at}"), &format!("n{at}"), 1000, |pod| {
                pod.labels = app("web");
                pod.anti_affinity = vec![term("web", HOSTNAME)];
            });
        }
        let plan = yard.plan();
        let counts = (plan.retire.len(), plan.launches.len());
        assert_eq!(counts, (expect, expect), "{}", shown(&plan));
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

fn wish<T>(term: T) -> Vec<Preferred<T>> {
    vec![Preferred { weight: 1, term }]
}

/// Gives the pod a preferred anti-affinity to the pod on the other node.
fn shy(yard: &mut Yard, policy: PreferencePolicy) {
    yard.pod_as("p", "n", 1000, |pod| {
        pod.preferred_anti_affinity = wish(term("q", HOSTNAME));
    });
    yard.configure(|own| own.scheduling.preferences = policy);
}

const PLACES: [Row; 5] = [
    (
        "the pod has anti-affinity to the pod on the other node",
        |it| {
            it.pool(alone);
            it.pod_as("p", "n", 1000, |pod| {
                pod.anti_affinity = vec![term("q", HOSTNAME)];
            });
        },
        "not_cheaper",
    ),
    (
        "the pod on the other node has anti-affinity to the pod",
        |it| {
            it.pool(alone);
            it.pod_as("q", "other", 7000, |pod| {
                pod.anti_affinity = vec![term("p", HOSTNAME)];
            });
        },
        "not_cheaper",
    ),
    (
        "the pod has preferred anti-affinity, and preferences are respected",
        |it| {
            it.pool(alone);
            shy(it, PreferencePolicy::Respect);
        },
        "not_cheaper",
    ),
    (
        "the pod has preferred anti-affinity, and preferences are ignored",
        |it| {
            it.pool(alone);
            shy(it, PreferencePolicy::Ignore);
        },
        "n ->",
    ),
    (
        "the pod prefers the larger type, and preferences are ignored",
        |it| {
            it.configure(|own| own.scheduling.preferences = PreferencePolicy::Ignore);
            it.pod_as("p", "n", 3000, |pod| {
                let of = Requirement::is_in(["s8"]);
                pod.preferred_nodes = wish([(INSTANCE_TYPE, of)].into_iter().collect());
            });
            it.node("n", "s8");
        },
        "n -> s4/a/on-demand",
    ),
];

#[test]
fn pods_stay_where_only_that_keeps_what_they_ask_of_others_places() {
    check(two, &PLACES);
}

#[test]
fn what_comes_in_a_node_s_place_keeps_its_pods_spread_over_zones() {
    let mut yard = Yard::plain();
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
        yard.node_of(name, "general", (of, zone, ON_DEMAND));
        yard.pod_as(&format!("{name}-web"), name, 1500, |pod| {
            pod.labels = app("web");
            pod.spread = vec![spread.clone()];
        });
    }
    assert_eq!(yard.moves(), "n -> s2/b/on-demand");
}

/// Reserved capacity is already paid: its price only orders expensive and cheap types.
#[test]
fn what_is_reserved_is_used_and_cheaper_types_of_it_first() {
    let types = || {
        let sold = |name, cores, price: f64| {
            kind(
                name,
                cores,
                &[(RESERVED, "a", price / 1e7), (ON_DEMAND, "a", price), (SPOT, "a", price / 3.0)],
            )
        };
        vec![
            sold("r4", 4, 0.4),
            kind("s4", 4, &[(ON_DEMAND, "a", 0.3), (SPOT, "a", 0.1)]),
            sold("r8", 8, 0.8),
        ]
    };
    for (what, of, expect) in [
        ("a larger reserved type", ("r8", "a", RESERVED), "n -> r4/a/reserved"),
        ("on-demand, of the same type", ("r4", "a", ON_DEMAND), "n -> r4/a/reserved"),
        ("spot, of the same type", ("r4", "a", SPOT), "n -> r4/a/reserved"),
        ("the cheapest reserved type", ("r4", "a", RESERVED), ""),
    ] {
        let mut yard = Yard::new(types(), vec![buying("general", &[RESERVED, ON_DEMAND, SPOT])]);
        yard.node_of("n", "general", of);
        yard.pod("p", "n", 3000);
        assert_eq!(yard.moves(), expect, "{what}");
    }
}

/// The verdicts of a node that is known only by its labels.
#[test]
fn a_node_says_why_consolidation_leaves_it_alone() {
    let rows: [Row; 9] = [
        ("the pool allows consolidation", |_| {}, "-"),
        (
            "the pool consolidates only empty nodes",
            |it| it.pool(|own| own.disruption.consolidation = Consolidation::Empty),
            "empty_only",
        ),
        (
            "the pool never consolidates",
            |it| it.pool(|own| own.disruption.consolidate_after = None),
            "never",
        ),
        ("the pool is static", |it| it.pool(|own| own.replicas = Some(2)), "static"),
        ("the type is unknown", |it| it.node("n", "s3"), "price_unknown"),
        ("the node has no type", |it| it.unlabel("n", INSTANCE_TYPE), "price_unknown"),
        ("the node has no capacity type", |it| it.unlabel("n", CAPACITY_TYPE), "price_unknown"),
        ("the node has no zone", |it| it.unlabel("n", ZONE), "price_unknown"),
        ("the node is empty, not underutilized", |it| it.pod("p", "other", 1000), "empty"),
    ];
    for (what, change, expect) in rows {
        let mut yard = two();
        change(&mut yard);
        let plan = yard.plan_by_labels();
        assert_eq!(code(&plan, "n"), expect, "{what}");
        let leaves = plan.retire.iter().any(|own| own.node.as_str() == "n");
        assert_eq!(leaves, expect == "-", "{what}");
    }
}

#[test]
fn prices_count_as_overlays_have_them() {
    for (of, adjustment, expect) in [
        ("new", "+1%", "n -> new/a/on-demand"),
        ("new", "+50%", ""),
        ("old", "-50%", ""),
        ("other", "-90%", "n -> other/a/on-demand"),
    ] {
        let types = [("old", 0.4), ("new", 0.3), ("other", 0.5)];
        let types = types.map(|(name, price)| kind(name, 4, &[(ON_DEMAND, "a", price)]));
        let mut yard = Yard::new(types.into(), vec![buying("general", &[ON_DEMAND])]);
        let mut overlay = Overlay {
            name: "ours".to_owned(),
            price: PriceAdjustment::parse(adjustment).ok(),
            ..Overlay::default()
        };
        let wanted = Requirement::is_in([of]);
        overlay.requirements.add(INSTANCE_TYPE, wanted);
        yard.configure(|own| own.overlays = vec![overlay]);
        yard.node("n", "old");
        yard.pod("p", "n", 3000);
        assert_eq!(yard.moves(), expect, "{of} {adjustment}");
    }
}
