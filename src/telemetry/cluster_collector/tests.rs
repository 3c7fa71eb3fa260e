//! Samples of a cluster, by their values.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{CollectedView, PODS_MAX, collect_samples, render};
use crate::catalog::Catalog;
use crate::engine::Engine;
use crate::engine::views::measures::Measures;
use crate::model::cluster::Cluster;
use crate::model::id::{NodeClassName, ObjectKey};
use crate::model::instance::{CapacityType, InstanceType, Offering, OfferingKey, Price};
use crate::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, POOL, ZONE};
use crate::model::node::Node;
use crate::model::pod::{Owner, Pod, PodPhase};
use crate::model::pool::{Budget, BudgetNodes, Pool, Reason};
use crate::model::quantity::Resources;
use crate::model::requirement::{Requirement, Requirements};
use crate::model::watched_object::WatchedObject;
use crate::state::State;
use crate::state::fixtures::{NOW, pod, waiting};

fn later(seconds: i64) -> Timestamp {
    NOW + SignedDuration::from_secs(seconds)
}

/// The series of a cluster after `later(100)`.
fn series(state: &State, measures: Measures<'_>, per_node: bool) -> Vec<String> {
    let view = CollectedView { state, measures, per_node, now: later(100) };
    let samples = collect_samples(&"prod".into(), &view, [].iter());
    let text = render([&samples[..]].into_iter(), |_| "");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// Checks the series whose names contain `part`: names and labels without the cluster.
fn check(all: &[String], part: &str, expect: &[&str]) {
    let all = all.iter().map(|line| line.replace("cluster=\"prod\",", ""));
    let found: Vec<String> = all.filter(|line| line.contains(part)).collect();
    assert_eq!(found, expect, "{part}");
}

fn with_cluster(cluster: Cluster) -> State {
    let mut state = State::default();
    state.apply_configuration(Arc::new(cluster));
    state
}

fn node(name: &str) -> Node {
    let labels = [
        (POOL, "general"),
        (INSTANCE_TYPE, "m7i.large"),
        (ZONE, "eu-west-1a"),
        (CAPACITY_TYPE, "spot"),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Node {
        name: name.into(),
        created: Some(later(40)),
        labels: labels.into(),
        capacity: Resources {
            cpu_milli: 2000,
            memory: 1000,
            ephemeral_storage: 50,
            pods: 10,
            ..Resources::default()
        },
        allocatable: Resources { cpu_milli: 1500, memory: 400, pods: 10, ..Resources::default() },
        ..Node::default()
    }
}

fn add(state: &mut State, objects: impl IntoIterator<Item = WatchedObject>) {
    objects.into_iter().for_each(|object| state.objects.apply(object, NOW));
}

#[test]
fn requests_of_all_pods_are_a_part_of_what_all_nodes_have() {
    let mut state = State::default();
    add(&mut state, ["a", "b"].map(|name| WatchedObject::Node(Box::new(node(name)))));
    let daemon = Owner { kind: "DaemonSet".to_owned(), ..Owner::default() };
    let mut pods = [pod("default", "p", "a"), pod("default", "d", "b"), pod("default", "e", "b")];
    pods[0].requests.cpu_milli = 650;
    pods[1].owner = Some(daemon);
    pods[2].phase = PodPhase::Succeeded;
    add(&mut state, pods.map(WatchedObject::from));
    check(
        &series(&state, Measures::default(), false),
        "utilization_percent",
        &[
            "karpenter_cluster_utilization_percent{resource_type=\"cpu\"} 25",
            "karpenter_cluster_utilization_percent{resource_type=\"memory\"} 0",
            "karpenter_cluster_utilization_percent{resource_type=\"pods\"} 10",
        ],
    );
}

#[test]
fn nodes_have_series_of_their_own_only_where_they_are_asked_for() {
    let mut state = State::default();
    add(&mut state, [WatchedObject::Node(Box::new(node("a")))]);
    let all = series(&state, Measures::default(), true);
    let labels = "nodepool=\"general\",zone=\"eu-west-1a\",arch=\"N/A\",capacity_type=\"spot\",\
                  instance_type=\"m7i.large\"";
    let age = format!("karpenter_nodes_current_lifetime_seconds{{node_name=\"a\",{labels}}} 60");
    check(&all, "lifetime", &[&age]);
    let overhead = [("cpu", "0.5"), ("memory", "600"), ("ephemeral_storage", "50"), ("pods", "0")];
    let overhead = overhead.map(|(resource, value)| {
        format!(
            "karpenter_nodes_system_overhead{{node_name=\"a\",resource_type=\"{resource}\",\
             {labels}}} {value}"
        )
    });
    check(&all, "overhead", &overhead.each_ref().map(String::as_str));
    let all = series(&state, Measures::default(), false);
    check(&all, "node_name", &[]);
}

#[test]
fn the_tightest_budget_of_a_pool_is_what_it_allows() {
    let mut pool = Pool::new("general");
    let of_empty = Budget { reasons: vec![Reason::Empty], ..Budget::new(BudgetNodes::Nodes(1)) };
    let not_drifted = vec![Reason::Empty, Reason::Underutilized, Reason::Expired];
    let most = Budget { reasons: not_drifted, ..Budget::new(BudgetNodes::Percent(25)) };
    pool.disruption.budgets = vec![most, of_empty];
    let state = with_cluster(Cluster { pools: vec![pool], ..Cluster::default() });
    let budget_counts = BTreeMap::from([("general".into(), (10, 2))]);
    let all = series(&state, Measures { budget_counts, ..Measures::default() }, false);
    let expect =
        |name: &str, values: [&str; 4]| {
            ["Empty", "Underutilized", "Drifted", "Expired"].into_iter().zip(values).map(
            move |(reason, value)| {
                format!(
                    "karpenter_nodepools_{name}{{nodepool=\"general\",reason=\"{reason}\"}} {value}"
                )
            },
        ).collect::<Vec<_>>()
        };
    let allowed = expect("allowed_disruptions", ["1", "3", "2147483647", "3"]);
    check(&all, "allowed", &allowed.iter().map(String::as_str).collect::<Vec<_>>());
    let consumed = expect("nodes_consuming_budgets", ["2"; 4]);
    check(&all, "consuming", &consumed.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn pods_that_wait_say_for_how_long() {
    let mut state = State::default();
    let made = |pod: Pod, at| Pod { created: Some(later(at)), ..pod };
    let starting = Pod { phase: PodPhase::Pending, ..pod("default", "starting", "n") };
    add(
        &mut state,
        [
            made(waiting("default", "new"), 90),
            made(waiting("default", "old"), 10),
            made(starting, 20),
            made(pod("default", "runs", "n"), 0),
        ]
        .map(WatchedObject::from),
    );
    let (new, old) = (ObjectKey::new("default", "new"), ObjectKey::new("default", "old"));
    let measures =
        Measures { unplanned: vec![(&new, later(95))], unschedulable: 1, ..Measures::default() };
    let all = series(&state, measures.clone(), true);
    let of = |name: &str, pod: &str, value: u32| {
        format!(
            "karpenter_pods_{name}_time_seconds{{name=\"{pod}\",namespace=\"default\"}} {value}"
        )
    };
    check(&all, "unbound", &[&of("unbound", "old", 90), &of("unbound", "new", 10)]);
    let unstarted = [("old", 90), ("starting", 80), ("new", 10)];
    let unstarted = unstarted.map(|(pod, value)| of("unstarted", pod, value));
    check(&all, "unstarted", &unstarted.each_ref().map(String::as_str));
    let undecided = of("provisioning_scheduling_undecided", "new", 5);
    check(&all, "undecided", &[&undecided]);
    let unschedulable = "karpenter_scheduler_unschedulable_pods_count\
                         {controller=\"provisioner\"} 1";
    check(&all, "unschedulable", &[unschedulable]);
    check(&series(&state, measures, false), "_time_seconds", &[]);
    let many: Vec<_> = (0..=PODS_MAX).map(|_| (&old, NOW)).collect();
    let measures = Measures { unplanned: many, ..Measures::default() };
    let undecided = series(&State::default(), measures, true);
    assert_eq!(undecided.iter().filter(|line| line.contains("undecided")).count(), PODS_MAX);
}

/// Two zones of spot and on-demand capacity.
fn instance_type(name: &str) -> InstanceType {
    let offering = |zone: &str, capacity_type, price, available| Offering {
        zone: zone.into(),
        capacity_type,
        price: Price::new(price).expect("a price"),
        available,
        reservation: None,
    };
    let mut requirements = Requirements::default();
    requirements.add("karpenter.k8s.aws/instance-memory", Requirement::is_in(["8192"]));
    InstanceType {
        name: name.into(),
        requirements,
        capacity: Resources { cpu_milli: 2000, memory: 7_000_000, ..Resources::default() },
        allocatable: Resources::default(),
        offerings: vec![
            offering("a", CapacityType::Spot, 0.25, true),
            offering("b", CapacityType::Spot, 0.5, true),
            offering("a", CapacityType::OnDemand, 1.0, true),
            offering("b", CapacityType::OnDemand, 1.0, false),
        ],
    }
}

#[test]
fn only_types_of_nodes_have_series_and_those_that_failed_are_not_available() {
    let classes = ["one", "two"].map(NodeClassName::from);
    let pools = classes.clone().map(|class| {
        let name = class.to_string();
        Pool { node_class: Some(class), ..Pool::new(name.as_str()) }
    });
    let mut state = with_cluster(Cluster { pools: pools.into(), ..Cluster::default() });
    let types = ["m7i.large", "c7i.large"].map(instance_type);
    state.apply_catalog(Arc::new(Catalog::new(types)));
    add(&mut state, [WatchedObject::Node(Box::new(node("n")))]);
    let key = |zone: &str| OfferingKey {
        instance_type: "m7i.large".into(),
        zone: zone.into(),
        capacity_type: CapacityType::Spot,
        reservation: None,
    };
    // For one class it can still be launched in the first zone.
    state.holds.record_refusal(Some(&classes[0]), &key("a"), later(99));
    for class in &classes {
        state.holds.record_refusal(Some(class), &key("b"), later(99));
    }
    let all = series(&state, Measures::default(), true);
    let name = "cloudprovider_instance_type";
    let of_type = [("cpu_cores", "2"), ("memory_bytes", "8589934592")];
    let of_type = of_type
        .map(|(of, value)| format!("karpenter_{name}_{of}{{instance_type=\"m7i.large\"}} {value}"));
    check(&all, "type_cpu", &[&of_type[0]]);
    check(&all, "type_memory", &[&of_type[1]]);
    let offerings = |of: &str, values: [&str; 4]| {
        [("spot", "a"), ("spot", "b"), ("on-demand", "a"), ("on-demand", "b")]
            .into_iter()
            .zip(values)
            .map(|((capacity_type, zone), value)| {
                format!(
                    "karpenter_{name}_offering_{of}{{instance_type=\"m7i.large\",\
                     capacity_type=\"{capacity_type}\",zone=\"{zone}\"}} {value}"
                )
            })
            .collect::<Vec<_>>()
    };
    let available = offerings("available", ["1", "0", "1", "0"]);
    check(&all, "_available", &available.iter().map(String::as_str).collect::<Vec<_>>());
    let prices = offerings("price_estimate", ["0.25", "0.5", "1", "1"]);
    check(&all, "_price", &prices.iter().map(String::as_str).collect::<Vec<_>>());
    check(&series(&state, Measures::default(), false), name, &[]);
}

#[test]
fn a_new_engine_has_measured_nothing() {
    let engine = Engine::new(1);
    let measures = engine.measures();
    assert!(measures.budget_counts.is_empty() && measures.unplanned.is_empty());
    assert_eq!(measures.unschedulable, 0);
}
