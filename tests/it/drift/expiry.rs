//! Expired nodes: voluntary and forced expiration.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use outrigger::disruption::expiry::claim_expiry;
use outrigger::model::labels::DO_NOT_DISRUPT;
use outrigger::model::pool::{BudgetNodes, Reason};

use super::{Fleet, START, at, budget_verdict, pool};

const DAY: i64 = 24 * 60;

fn days(count: i64) -> Option<SignedDuration> {
    Some(SignedDuration::from_hours(24 * count))
}

#[test]
fn expiry_follows_the_age_of_the_claim() {
    let mut fleet = Fleet::of(3);
    fleet.claim("n0").record.expire_after = days(1);
    fleet.claim("n1").record.expire_after = days(1);
    fleet.claim("n1").record.created = at(DAY);
    // The age is that of the claim, also if the Node was created later.
    fleet.change_node("n0", |own| own.created = Some(at(DAY)));
    assert_eq!(fleet.disrupted(Reason::Expired, at(DAY / 2)), [""; 0]);
    assert_eq!(fleet.disrupted(Reason::Expired, at(DAY)), ["n0"]);
    assert_eq!(fleet.disrupted(Reason::Expired, at(2 * DAY)), ["n0", "n1"]);
    fleet.start_disruption("n0", Reason::Expired);
    assert_eq!(
        fleet.disrupted(Reason::Expired, at(2 * DAY)),
        ["n1"],
        "a node is not disrupted twice"
    );
}

#[test]
fn hard_expiry_overrides_budgets_and_blockers() {
    let mut fleet = Fleet::of(4);
    fleet.change(|own| own.disruption.budgets[0].nodes = BudgetNodes::Nodes(0));
    let annotate = |own: &mut outrigger::model::node::Node| {
        own.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
    };
    fleet.change_node("n0", annotate);
    fleet.change_node("n1", |own| drop(own.labels.remove("karpenter.sh/initialized")));
    fleet.state.nominate("n2".into(), at(9 * DAY));
    for name in ["n0", "n1", "n2", "n3"] {
        fleet.claim(name).record.expire_after = days(1);
    }
    assert_eq!(fleet.disrupted(Reason::Expired, at(2 * DAY)), [""; 0]);
    for name in ["n0", "n1", "n2", "n3"] {
        fleet.claim(name).record.expire_hard_after = days(2);
    }
    let before = at(2 * DAY) - SignedDuration::from_secs(1);
    assert_eq!(fleet.disrupted(Reason::Expired, before), [""; 0]);
    assert_eq!(fleet.disrupted(Reason::Expired, at(2 * DAY)), ["n0", "n1", "n2", "n3"]);
}

#[test]
fn hard_expired_nodes_count_for_the_expiry_budget() {
    let mut fleet = Fleet::of(4);
    fleet.change(|own| own.disruption.budgets[0].nodes = BudgetNodes::Nodes(2));
    for name in ["n0", "n1", "n2", "n3"] {
        fleet.claim(name).record.expire_after = days(1);
    }
    fleet.claim("n3").record.expire_hard_after = days(2);
    assert_eq!(fleet.disrupted(Reason::Expired, at(2 * DAY)), ["n3", "n0"]);
    let kept = fleet.verdict("n1", Reason::Expired, at(2 * DAY));
    assert_eq!(kept, Some(budget_verdict(2)));
}

/// 500 nodes that expire within one minute: each disruption takes five minutes, and then a new node
/// exists.
#[test]
fn simultaneous_expiry_of_many_nodes_stays_within_the_budget() {
    let mut fleet = Fleet::new(vec![pool("p")]);
    fleet.change(|own| {
        own.disruption.budgets[0].nodes = BudgetNodes::Percent(10);
        own.expire_after = days(30);
    });
    for index in 0..500_i64 {
        let name = format!("n{index:03}");
        fleet.node(&name, "p");
        fleet.claim(&name).record.created = START + SignedDuration::from_millis(120 * index);
    }
    let claims = fleet.state.ledger.claims.values();
    let due: Vec<Timestamp> = claims.filter_map(|own| claim_expiry(&own.record)).collect();
    let (first, last) = (due.iter().min().expect("one"), due.iter().max().expect("one"));
    let spread = last.duration_since(*first).as_hours();
    assert!((48..=72).contains(&spread), "spread over a tenth of the month: {spread} h");
    // The worst case is a maintenance window that opens after all nodes have expired: only the
    // budget limits them.
    let mut now = at(30 * DAY + 1);
    let mut under_way: VecDeque<(Timestamp, String)> = VecDeque::new();
    let (mut replaced, mut most) = (0, 0);
    while replaced < 500 {
        while under_way.front().is_some_and(|(end, _)| *end <= now) {
            let (_, name) = under_way.pop_front().expect("one");
            fleet.state.ledger.remove(&name.as_str().into());
            fleet.node(&format!("new-{name}"), "p");
            fleet.claim(&format!("new-{name}")).record.created = now;
            replaced += 1;
        }
        for name in fleet.disrupted(Reason::Expired, now) {
            fleet.start_disruption(&name, Reason::Expired);
            under_way.push_back((now + SignedDuration::from_mins(5), name));
        }
        most = most.max(under_way.len());
        assert!(under_way.len() <= 50, "{} at {now}", under_way.len());
        now += SignedDuration::from_secs(30);
        assert!(now < at(31 * DAY), "only {replaced} were replaced");
    }
    assert_eq!(most, 50, "the budget is used fully");
}
