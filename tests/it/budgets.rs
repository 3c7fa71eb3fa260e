//! How many nodes may be disrupted simultaneously or per period: budgets of pools, clusters and the
//! fleet, pauses and maintenance windows.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::Catalog;
use outrigger::coordination::lease_annotations::{DisruptionRecord, Pause};
use outrigger::disruption::budgets::Budgets;
use outrigger::disruption::verdict::{RuleScope, Verdict};
use outrigger::model::cluster::Cluster;
use outrigger::model::fleet::{DisruptionUsage, FleetView, OtherClusters};
use outrigger::model::id::ClaimId;
use outrigger::model::labels::{INITIALIZED, Labels, POOL};
use outrigger::model::node::Node;
use outrigger::model::pool::{Budget, BudgetNodes, CoolDown, Maintenance, Pool, Rate, Reason};
use outrigger::model::watched_object::WatchedObject;
use outrigger::model::window::Window;
use outrigger::plan::{Plan, next_due, select_disruptions};
use outrigger::state::State;

/// 2027-01-15 08:00 UTC.
const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn minutes(count: i64) -> Timestamp {
    NOW + SignedDuration::from_mins(count)
}

fn node(name: &str, pool: &str) -> Node {
    let labels = [(POOL, pool), (INITIALIZED, "true")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Node {
        name: name.into(),
        labels: Labels::from(labels),
        ready: true,
        created: Some(minutes(-600)),
        ..Node::default()
    }
}

fn budget(nodes: BudgetNodes) -> Budget {
    Budget { nodes, rate: None, reasons: Vec::new(), during: None }
}

fn rate(text: &str) -> Budget {
    Budget { rate: Rate::parse(text), ..budget(BudgetNodes::Percent(100)) }
}

fn window(cron: &str, minutes: i64) -> Window {
    Window::new(cron, SignedDuration::from_mins(minutes), "UTC").expect("a window")
}

fn pool(name: &str, budgets: &[Budget]) -> Pool {
    let mut pool = Pool::new(name);
    pool.disruption.budgets = budgets.to_vec();
    pool
}

/// A state with these pools, each with the given number of empty nodes.
fn state_of(pools: &[(Pool, usize)]) -> State {
    let cluster = Cluster {
        pools: pools.iter().map(|(pool, _)| pool.clone()).collect(),
        ..Cluster::default()
    };
    let nodes = pools.iter().flat_map(|(pool, count)| {
        let name = pool.name.as_str();
        (0..*count).map(move |at| node(&format!("{name}-{at:02}"), name))
    });
    let nodes = nodes.map(|node| WatchedObject::Node(Box::new(node))).collect();
    let catalog = Arc::new(Catalog::default());
    State::offline(Arc::new(cluster), catalog, nodes, NOW)
}

fn one_pool(budgets: &[Budget], count: usize) -> State {
    state_of(&[(pool("general", budgets), count)])
}

fn configure(state: &mut State, change: impl FnOnce(&mut Cluster)) {
    let mut cluster = Cluster::clone(&state.cluster);
    change(&mut cluster);
    state.cluster = Arc::new(cluster);
}

fn plan(state: &State, now: Timestamp) -> Plan {
    select_disruptions(&state.disruption_view(now), now)
}

/// Returns the number of disrupted nodes and the distinct verdicts of the retained ones.
fn outcome(state: &State, now: Timestamp) -> (usize, BTreeSet<String>) {
    let plan = plan(state, now);
    let kept = plan.kept.iter().map(|retained| retained.verdict.to_string());
    (plan.retire.len(), kept.collect())
}

fn disrupted_count(state: &State) -> usize {
    outcome(state, NOW).0
}

#[test]
fn budget_limits_how_many_empty_nodes_are_disrupted() {
    let rows = [
        (BudgetNodes::Nodes(3), 3),
        (BudgetNodes::Percent(100), 10),
        (BudgetNodes::Nodes(0), 0),
        (BudgetNodes::Percent(0), 0),
        (BudgetNodes::Nodes(30), 10),
    ];
    for (nodes, expect) in rows {
        assert_eq!(disrupted_count(&one_pool(&[budget(nodes)], 10)), expect, "{nodes:?}");
    }
}

#[test]
fn each_pool_has_its_own_budgets() {
    let rows =
        [(BudgetNodes::Nodes(2), 2), (BudgetNodes::Percent(100), 3), (BudgetNodes::Nodes(0), 0)];
    for (nodes, expect) in rows {
        let pools: Vec<_> =
            (0..10).map(|at| (pool(&format!("p{at}"), &[budget(nodes)]), 3)).collect();
        let plan = plan(&state_of(&pools), NOW);
        for (pool, _) in &pools {
            let disrupted = plan.retire.iter().filter(|node| node.pool == pool.name);
            assert_eq!(disrupted.count(), expect, "{nodes:?} of {}", pool.name);
        }
    }
}

#[test]
fn percentage_budget_is_rounded_up() {
    for (percent, count, expect) in [(1, 1, 1), (10, 10, 1), (10, 11, 2), (50, 3, 2), (0, 3, 0)] {
        let state = one_pool(&[budget(BudgetNodes::Percent(percent))], count);
        assert_eq!(disrupted_count(&state), expect, "{percent} % of {count}");
    }
}

#[test]
fn smallest_budget_that_applies_to_the_reason_limits() {
    let of = |nodes, reasons: &[Reason]| Budget {
        reasons: reasons.to_vec(),
        ..budget(BudgetNodes::Nodes(nodes))
    };
    let rows: [(&[Budget], usize); 5] = [
        (&[of(4, &[]), of(2, &[])], 2),
        (&[of(4, &[]), of(2, &[Reason::Empty])], 2),
        (&[of(4, &[]), of(0, &[Reason::Drifted])], 4),
        (&[of(0, &[Reason::Underutilized, Reason::Expired])], 9),
        (&[], 9),
    ];
    for (budgets, expect) in rows {
        assert_eq!(disrupted_count(&one_pool(budgets, 9)), expect, "{budgets:?}");
    }
}

#[test]
fn budget_applies_only_within_its_schedule() {
    let state = one_pool(
        &[Budget { during: Some(window("0 8 * * *", 60)), ..budget(BudgetNodes::Nodes(0)) }],
        2,
    );
    let before = outcome(&state, minutes(-1));
    assert_eq!(before.0, 2);
    let (count, why) = outcome(&state, NOW);
    assert_eq!(count, 0);
    let expect = "the disruption budget of its pool allows 0 node(s) at a time, until \
                  2027-01-15T09:00:00Z";
    assert_eq!(why, BTreeSet::from([expect.to_owned()]));
    assert_eq!(next_due(&plan(&state, NOW).kept), Some(minutes(60)));
    assert_eq!(outcome(&state, minutes(60)).0, 2);
}

#[test]
fn disrupted_not_ready_and_deleted_nodes_count_against_the_budget() {
    // Already disrupted, not ready, deleted by a user; how many more a budget of three allows.
    let rows = [
        (0, 0, 0, 3),
        (1, 0, 0, 2),
        (0, 1, 0, 2),
        (0, 0, 1, 2),
        (1, 1, 1, 0),
        (3, 0, 0, 0),
        (9, 2, 0, 0),
    ];
    for (disrupted, unready, deleted, expect) in rows {
        let mut state = one_pool(&[budget(BudgetNodes::Nodes(3))], 10);
        for at in 0..unready + deleted {
            let mut node = node(&format!("general-{at:02}"), "general");
            node.ready = at >= unready;
            node.deleting = (at >= unready).then_some(NOW);
            state.objects.apply(WatchedObject::Node(Box::new(node)), NOW);
        }
        let mut disruption_view = state.disruption_view(NOW);
        disruption_view.leaving.insert("general".into(), disrupted);
        let mut budgets = Budgets::new(&disruption_view, NOW);
        let whole = disruption_view.candidates.iter();
        let whole =
            whole.filter(|candidate| candidate.node.ready && candidate.node.deleting.is_none());
        let allowed =
            whole.filter(|candidate| budgets.try_acquire(candidate, Reason::Drifted).is_ok());
        let what = (disrupted, unready, deleted);
        assert_eq!(allowed.count(), expect, "{what:?}");
        assert_eq!(
            budgets.total_and_disrupted().1,
            disrupted + unready + deleted + expect,
            "{what:?}"
        );
    }
}

#[test]
fn uninitialized_and_unmanaged_nodes_do_not_count_in_budgets() {
    let mut state = one_pool(&[budget(BudgetNodes::Percent(50))], 4);
    for (name, pool) in [("young", "general"), ("strange", "other")] {
        let mut node = node(name, pool);
        if name == "young" {
            node.labels.remove(INITIALIZED);
        }
        state.objects.apply(WatchedObject::Node(Box::new(node)), NOW);
    }
    assert_eq!(disrupted_count(&state), 2);
    let disruption_view = state.disruption_view(NOW);
    assert_eq!(Budgets::new(&disruption_view, NOW).total_and_disrupted(), (4, 0));
}

#[test]
fn cluster_budget_counts_the_nodes_of_all_pools() {
    let all = budget(BudgetNodes::Percent(100));
    for (budget, expect) in [
        (budget(BudgetNodes::Nodes(3)), 3),
        (budget(BudgetNodes::Percent(25)), 3),
        (budget(BudgetNodes::Nodes(0)), 0),
        (all.clone(), 12),
    ] {
        let pools = ["a", "b", "c"].map(|name| (pool(name, std::slice::from_ref(&all)), 4));
        let mut state = state_of(&pools);
        configure(&mut state, |cluster| cluster.disruption.budgets = vec![budget.clone()]);
        assert_eq!(disrupted_count(&state), expect, "{budget:?}");
    }
    // The smaller of the pool's and the cluster's budget applies.
    let mut state = one_pool(&[budget(BudgetNodes::Nodes(1))], 9);
    configure(&mut state, |cluster| {
        cluster.disruption.budgets = vec![budget(BudgetNodes::Nodes(3))];
    });
    let (count, why) = outcome(&state, NOW);
    let expect = "the disruption budget of its pool allows 1 node(s) at a time";
    assert_eq!((count, why), (1, BTreeSet::from([expect.to_owned()])));
}

#[test]
fn fleet_budget_counts_the_nodes_of_other_clusters() {
    let disruption_usage = |nodes, unready, disrupted: usize| DisruptionUsage {
        nodes,
        unready,
        leaving: (0..disrupted).map(|at| ClaimId::from(format!("c{at}").as_str())).collect(),
        ..DisruptionUsage::default()
    };
    // 30 % of ten nodes in this cluster and twenty in the other is nine.
    for (other, expect) in [
        (disruption_usage(20, 0, 0), 9),
        (disruption_usage(20, 2, 3), 4),
        (disruption_usage(20, 9, 9), 0),
    ] {
        let mut state = one_pool(&[budget(BudgetNodes::Percent(100))], 10);
        let mut others = OtherClusters::default();
        others.add_usage(&other);
        state.fleet = Some(Arc::new(FleetView {
            budgets: vec![budget(BudgetNodes::Percent(30))],
            others,
            ..FleetView::default()
        }));
        let plan = plan(&state, NOW);
        assert_eq!(plan.retire.len(), expect, "{other:?}");
        let of_fleet =
            |verdict: &Verdict| matches!(verdict, Verdict::Budget { of: RuleScope::Fleet, .. });
        assert!(plan.kept.iter().all(|retained| of_fleet(&retained.verdict)));
    }
}

/// Records disrupted nodes: their pool, how many minutes ago, and the reason.
fn record_disruptions(state: &mut State, disrupted: &[(&str, i64, Reason)]) {
    for (at, (pool, ago, reason)) in disrupted.iter().enumerate() {
        let claim = ClaimId::from(format!("gone-{at}").as_str());
        let (pool, reason, at) = ((*pool).into(), *reason, minutes(-ago));
        state.notes.let_go.insert(claim, DisruptionRecord { pool, reason, at });
    }
}

#[test]
fn rate_budget_counts_disruptions_within_its_period() {
    use Reason::{Drifted, Empty, Expired};
    type Gone<'a> = &'a [(&'a str, i64, Reason)];
    let rows: [(Budget, Gone<'_>, usize, Option<i64>); 7] = [
        (rate("3/h"), &[], 3, Some(60)),
        (rate("3/h"), &[("general", 59, Empty)], 2, Some(1)),
        (rate("3/h"), &[("general", 60, Empty)], 3, Some(60)),
        (rate("2/h"), &[("general", 50, Drifted), ("general", 20, Expired)], 0, Some(10)),
        // More than the rate: it was higher before, or another host disrupted nodes.
        (rate("1/h"), &[("general", 50, Empty), ("general", 20, Empty)], 0, Some(40)),
        (rate("2/d"), &[("general", 1439, Empty)], 1, Some(1)),
        (rate("1/m"), &[("other", 0, Empty)], 1, Some(1)),
    ];
    for (budget, disrupted, expect, opens) in rows {
        let mut state = one_pool(std::slice::from_ref(&budget), 9);
        record_disruptions(&mut state, disrupted);
        let plan = plan(&state, NOW);
        assert_eq!(plan.retire.len(), expect, "{budget:?} {disrupted:?}");
        assert_eq!(next_due(&plan.kept), opens.map(minutes), "{budget:?} {disrupted:?}");
    }
}

#[test]
fn rate_budget_counts_only_its_own_reasons_and_pools() {
    let drifted = Budget { reasons: vec![Reason::Drifted], ..rate("1/h") };
    let mut state = one_pool(std::slice::from_ref(&drifted), 3);
    record_disruptions(&mut state, &[("general", 5, Reason::Drifted)]);
    assert_eq!(disrupted_count(&state), 3, "the rate does not apply to empty nodes");
    let empty = Budget { reasons: vec![Reason::Empty], ..rate("1/h") };
    let mut state = one_pool(std::slice::from_ref(&empty), 3);
    record_disruptions(&mut state, &[("general", 5, Reason::Drifted)]);
    assert_eq!(disrupted_count(&state), 1, "the rate does not count drifted nodes");
    // A rate of the cluster counts all pools.
    let all = budget(BudgetNodes::Percent(100));
    let mut state = one_pool(std::slice::from_ref(&all), 3);
    configure(&mut state, |cluster| cluster.disruption.budgets = vec![rate("2/h")]);
    record_disruptions(&mut state, &[("other", 5, Reason::Drifted)]);
    let (count, why) = outcome(&state, NOW);
    let expect =
        "the disruption budget of the cluster is used up (2/h), until 2027-01-15T08:55:00Z";
    assert_eq!((count, why), (1, BTreeSet::from([expect.to_owned()])));
    // A rate of the fleet counts all clusters.
    let mut state = one_pool(std::slice::from_ref(&all), 3);
    let others =
        OtherClusters { let_go: vec![(minutes(-10), Reason::Expired)], ..OtherClusters::default() };
    state.fleet =
        Some(Arc::new(FleetView { budgets: vec![rate("2/h")], others, ..FleetView::default() }));
    assert_eq!(disrupted_count(&state), 1);
}

#[test]
fn repeated_disruption_of_a_node_counts_once_in_the_rate() {
    let mut state = one_pool(&[rate("1/h")], 2);
    let claim = ClaimId::from("general-00");
    let (pool, reason, at) = ("general".into(), Reason::Empty, minutes(-30));
    state.notes.let_go.insert(claim, DisruptionRecord { pool, reason, at });
    let plan = plan(&state, NOW);
    let disrupted: Vec<&str> =
        plan.retire.iter().map(|disrupted| disrupted.node.as_str()).collect();
    assert_eq!(disrupted, ["general-00"]);
    assert_eq!(next_due(&plan.kept), Some(minutes(60)), "its period starts now");
}

#[test]
fn unparsable_disruption_records_block_pools_with_a_rate() {
    let mut state = one_pool(&[rate("5/h")], 2);
    state.notes.garbled = Some("it does not parse".to_owned());
    let expect = BTreeSet::from(["it does not parse".to_owned()]);
    assert_eq!(outcome(&state, NOW), (0, expect));
    // A pool without a rate does not need the records.
    let mut state = one_pool(&[budget(BudgetNodes::Nodes(2))], 2);
    state.notes.garbled = Some("it does not parse".to_owned());
    assert_eq!(disrupted_count(&state), 2);
}

#[test]
fn pauses_and_unread_annotations_block_disruption() {
    let pause =
        |until: Option<i64>| Pause { until: until.map(minutes), reason: "new CNI".to_owned() };
    let all = budget(BudgetNodes::Percent(100));
    let two = || ["a", "b"].map(|name| (pool(name, std::slice::from_ref(&all)), 2));
    let mut state = state_of(&two());
    state.notes.pauses.insert(Some("a".into()), pause(Some(30)));
    let expect = "its pool is paused until 2027-01-15T08:30:00Z: new CNI".to_owned();
    assert_eq!(outcome(&state, NOW), (2, BTreeSet::from([expect])));
    assert_eq!(next_due(&plan(&state, NOW).kept), Some(minutes(30)));
    assert_eq!(outcome(&state, minutes(30)).0, 4);
    state.notes.pauses.insert(None, pause(None));
    let expect = "the cluster is paused: new CNI".to_owned();
    assert_eq!(outcome(&state, NOW), (0, BTreeSet::from([expect])));
    let mut state = state_of(&two());
    state.notes.fault = Some("nobody has read it".to_owned());
    let expect = BTreeSet::from(["nobody has read it".to_owned()]);
    assert_eq!(outcome(&state, NOW), (0, expect));
}

#[test]
fn disruption_needs_the_windows_of_both_pool_and_cluster() {
    let allow = |cron, minutes| Maintenance {
        allows: true,
        reasons: vec![Reason::Empty],
        during: window(cron, minutes),
    };
    let mut state = one_pool(&[], 3);
    configure(&mut state, |cluster| {
        cluster.pools[0].disruption.windows = vec![allow("0 9 * * *", 120)];
        cluster.disruption.windows = vec![allow("0 10 * * *", 120)];
    });
    let expect = "outside maintenance windows until 2027-01-15T10:00:00Z".to_owned();
    assert_eq!(outcome(&state, NOW), (0, BTreeSet::from([expect])));
    assert_eq!(next_due(&plan(&state, NOW).kept), Some(minutes(120)));
    assert_eq!(outcome(&state, minutes(120)).0, 3);
    assert_eq!(outcome(&state, minutes(180)).0, 0);
}

#[test]
fn cool_down_after_a_termination_blocks_only_consolidation() {
    let mut state = one_pool(&[], 3);
    let wait = SignedDuration::from_mins(10);
    configure(&mut state, |cluster| {
        cluster.disruption.cool_down = CoolDown { after_end: wait, ..CoolDown::default() };
    });
    assert_eq!(disrupted_count(&state), 3);
    state.recent.ended = Some(minutes(-4));
    let expect = "in back-off until 2027-01-15T08:06:00Z, after a termination".to_owned();
    assert_eq!(outcome(&state, NOW), (0, BTreeSet::from([expect])));
    assert_eq!(next_due(&plan(&state, NOW).kept), Some(minutes(6)));
    let disruption_view = state.disruption_view(NOW);
    let budgets = Budgets::new(&disruption_view, NOW);
    let refused = |reason| budgets.refusal(&disruption_view.candidates[0], reason).is_some();
    let reasons = [Reason::Underutilized, Reason::Drifted, Reason::Expired];
    assert_eq!(reasons.map(refused), [true, false, false]);
}
