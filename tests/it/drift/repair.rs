//! Unhealthy nodes: the conditions, the delay before repair, and the safeguard that blocks it.

use jiff::SignedDuration;
use outrigger::disruption::verdict::Verdict;
use outrigger::model::labels::DO_NOT_DISRUPT;
use outrigger::model::node::ConditionStatus::{self, False, True, Unknown};
use outrigger::model::pool::{BudgetNodes, Reason, RepairPolicy};
use outrigger::plan::next_due;
use outrigger::state::disruption_blockers::DisruptionBlocker;

use super::{Fleet, at};

fn set_condition(fleet: &mut Fleet, node: &str, kind: &str, status: ConditionStatus, minute: i64) {
    fleet.change_node(node, |own| own.set_condition(kind, status, at(minute)));
}

fn repaired(fleet: &Fleet, minute: i64) -> Vec<String> {
    fleet.disrupted(Reason::Unhealthy, at(minute))
}

#[test]
fn node_is_replaced_after_the_delay_of_an_unhealthy_condition() {
    let rows = [
        ("Ready", False, Some(30)),
        ("Ready", Unknown, Some(30)),
        ("Ready", True, None),
        ("AcceleratedHardwareReady", False, Some(10)),
        ("AcceleratedHardwareReady", Unknown, None),
        ("StorageReady", False, Some(30)),
        ("NetworkingReady", False, Some(30)),
        ("KernelReady", False, Some(30)),
        ("ContainerRuntimeReady", False, Some(30)),
        ("DiskPressure", True, None),
    ];
    for (kind, status, after) in rows {
        let mut fleet = Fleet::of(1);
        set_condition(&mut fleet, "n0", kind, status, 5);
        let row = format!("{kind} {}", status.as_str());
        let Some(after) = after else {
            assert_eq!(repaired(&fleet, 9999), [""; 0], "{row}");
            continue;
        };
        assert_eq!(repaired(&fleet, 4 + after), [""; 0], "{row}");
        let until = at(5 + after);
        let verdict = fleet.verdict("n0", Reason::Unhealthy, at(4 + after));
        assert_eq!(verdict, Some(Verdict::Recovering { until }), "{row}");
        let kept = fleet.plan(at(4 + after)).kept;
        assert_eq!(next_due(&kept), Some(until), "the next check is due then: {row}");
        assert_eq!(repaired(&fleet, 5 + after), ["n0"], "{row}");
    }
}

#[test]
fn repair_delay_restarts_only_if_the_condition_status_changes() {
    let mut fleet = Fleet::of(1);
    set_condition(&mut fleet, "n0", "Ready", False, 0);
    set_condition(&mut fleet, "n0", "Ready", False, 20);
    assert_eq!(repaired(&fleet, 30), ["n0"]);
    set_condition(&mut fleet, "n0", "Ready", Unknown, 25);
    assert_eq!(repaired(&fleet, 54), [""; 0]);
    assert_eq!(repaired(&fleet, 55), ["n0"]);
}

#[test]
fn earliest_due_condition_decides_the_repair() {
    let mut fleet = Fleet::of(1);
    set_condition(&mut fleet, "n0", "Ready", False, 0);
    set_condition(&mut fleet, "n0", "AcceleratedHardwareReady", False, 25);
    assert_eq!(repaired(&fleet, 29), [""; 0]);
    let verdict = fleet.verdict("n0", Reason::Unhealthy, at(29));
    assert_eq!(verdict, Some(Verdict::Recovering { until: at(30) }));
    assert_eq!(repaired(&fleet, 30), ["n0"]);
}

#[test]
fn pool_repair_policies_replace_the_defaults() {
    let mut fleet = Fleet::of(1);
    let policy = |condition: &str, status, minutes: Option<i64>| RepairPolicy {
        condition: condition.to_owned(),
        status,
        after: minutes.map(SignedDuration::from_mins),
    };
    set_condition(&mut fleet, "n0", "KernelDeadlock", True, 0);
    set_condition(&mut fleet, "n0", "Ready", False, 0);
    fleet.change(|own| {
        own.repair = vec![policy("KernelDeadlock", True, Some(3)), policy("Ready", False, None)];
    });
    assert_eq!(repaired(&fleet, 3), ["n0"]);
    set_condition(&mut fleet, "n0", "KernelDeadlock", False, 1);
    assert_eq!(repaired(&fleet, 9999), [""; 0], "a policy without a delay never repairs");
    fleet.change(|own| own.repair = RepairPolicy::default_policies());
    assert_eq!(repaired(&fleet, 30), ["n0"]);
    fleet.change(|own| own.repair.clear());
    assert_eq!(repaired(&fleet, 9999), [""; 0]);
    // Nodes of a removed pool use the default repair policies.
    fleet.configure(|own| own.pools.clear());
    assert_eq!(repaired(&fleet, 30), ["n0"]);
}

#[test]
fn budgets_and_annotations_do_not_block_repair() {
    let mut fleet = Fleet::of(5);
    fleet.change(|own| own.disruption.budgets[0].nodes = BudgetNodes::Nodes(0));
    fleet.change_node("n0", |own| {
        drop(own.annotations.insert(DO_NOT_DISRUPT.into(), "true".into()))
    });
    set_condition(&mut fleet, "n0", "Ready", False, 0);
    assert_eq!(repaired(&fleet, 30), ["n0"]);
}

#[test]
fn repair_stops_if_more_than_a_fifth_of_the_pool_is_unhealthy() {
    // The number of nodes, the number of unhealthy ones, and whether repair is allowed.
    for (nodes, unhealthy, expect) in [
        (1, 1, true),
        (2, 1, true),
        (2, 2, false),
        (5, 1, true),
        (5, 2, false),
        (6, 2, true),
        (10, 2, true),
        (10, 3, false),
    ] {
        let mut fleet = Fleet::of(nodes);
        fleet.configure(|own| own.safeguards.max_unready = BudgetNodes::Percent(100));
        for index in 0..unhealthy {
            // One of them is unhealthy only for a minute, and still counts.
            set_condition(
                &mut fleet,
                &format!("n{index}"),
                "Ready",
                False,
                29 * i64::from(index == 1),
            );
        }
        let verdict = fleet.verdict("n0", Reason::Unhealthy, at(30));
        let refused = Verdict::Broken { broken: unhealthy, total: nodes };
        assert_eq!(verdict, (!expect).then_some(refused), "{unhealthy} of {nodes}");
    }
    // A node that is being disrupted still counts as unhealthy.
    let mut fleet = Fleet::of(5);
    for name in ["n0", "n1"] {
        set_condition(&mut fleet, name, "Ready", False, 0);
    }
    fleet.start_disruption("n0", Reason::Unhealthy);
    assert_eq!(repaired(&fleet, 30), [""; 0]);
}

#[test]
fn at_most_ten_unhealthy_nodes_are_replaced_at_once() {
    let mut fleet = Fleet::of(100);
    for index in 0..15 {
        set_condition(&mut fleet, &format!("n{index}"), "Ready", False, 15 - index);
    }
    let found = repaired(&fleet, 60);
    assert_eq!(found.len(), 10);
    assert_eq!(found[0], "n14", "the node that has been due for longest");
    for name in &found {
        fleet.start_disruption(name, Reason::Unhealthy);
    }
    assert_eq!(repaired(&fleet, 60), [""; 0]);
    let expect = Some(Verdict::Repairing { most: 10 });
    assert_eq!(fleet.verdict("n0", Reason::Unhealthy, at(60)), expect);
}

#[test]
fn uninitialized_node_is_not_repaired() {
    let mut fleet = Fleet::of(5);
    set_condition(&mut fleet, "n0", "Ready", False, 0);
    fleet.change_node("n0", |own| drop(own.labels.remove("karpenter.sh/initialized")));
    assert_eq!(repaired(&fleet, 9999), [""; 0]);
}

/// Outrigger cannot tell which of two Nodes with one providerID is the machine. The pods of the
/// other Node may run while this Node is unresponsive.
#[test]
fn unhealthy_node_is_kept_while_another_node_has_its_provider_id() {
    let mut fleet = Fleet::of(2);
    set_condition(&mut fleet, "n0", "Ready", Unknown, 0);
    assert_eq!(repaired(&fleet, 40), ["n0"]);
    let same = fleet.state.objects.nodes["n0"].provider_id.clone();
    fleet.change_node("n1", |own| own.provider_id = same);
    assert_eq!(repaired(&fleet, 40), [""; 0]);
    let verdict = fleet.verdict("n0", Reason::Unhealthy, at(40));
    let other = DisruptionBlocker::SameInstance("n1".into());
    assert_eq!(verdict, Some(Verdict::Blocked(other)));
}
