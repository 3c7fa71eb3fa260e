//! Causes of drift, the order of disruption, and the blockers.

use std::sync::Arc;

use outrigger::catalog::Catalog;
use outrigger::disruption::verdict::Verdict;
use outrigger::model::cluster::RemovedPools;
use outrigger::model::instance::{CapacityType, InstanceType, Offering};
use outrigger::model::labels::{DO_NOT_DISRUPT, POOL};
use outrigger::model::node_class::NodeClass;
use outrigger::model::pool::{BudgetNodes, Pool, Reason};
use outrigger::model::requirement::Requirement;
use outrigger::model::taint::{Effect, Taint};
use outrigger::state::disruption_blockers::DisruptionBlocker;

use super::{Fleet, at, budget_verdict, pod, pool};

type Change = fn(&mut Pool);

/// The zones and capacity types of a type, and whether they are available.
type Sold<'a> = &'a [(&'a str, CapacityType, bool)];

/// Adds a requirement to the pool.
fn require(pool: &mut Pool, key: &str, requirement: Requirement) {
    pool.requirements.add(key, requirement);
}

#[test]
fn node_drifts_if_its_labels_violate_pool_requirements() {
    const TIER: &str = "example.com/tier";
    const COUNT: &str = "example.com/count";
    let rows: [(&str, Change, bool); 10] = [
        ("changed", |it| require(it, TIER, Requirement::is_in(["silver"])), true),
        ("widened", |it| require(it, TIER, Requirement::is_in(["gold", "silver"])), false),
        ("exists", |it| require(it, TIER, Requirement::exists()), false),
        ("does not exist", |it| require(it, TIER, Requirement::does_not_exist()), true),
        ("excluded", |it| require(it, TIER, Requirement::not_in(["gold"])), true),
        ("added", |it| require(it, "example.com/new", Requirement::is_in(["a"])), true),
        (
            "absent is allowed",
            |it| require(it, "example.com/new", Requirement::not_in(["a"])),
            false,
        ),
        ("above", |it| require(it, COUNT, Requirement::between(Some(2), None)), false),
        ("below", |it| require(it, COUNT, Requirement::between(None, Some(4))), false),
        ("not below", |it| require(it, COUNT, Requirement::between(None, Some(2))), true),
    ];
    for (row, change, drifts) in rows {
        let mut fleet = Fleet::of(1);
        fleet.change_node("n0", |own| {
            own.labels.insert(TIER.into(), "gold".into());
            own.labels.insert(COUNT.into(), "3".into());
        });
        assert_eq!(fleet.drift_causes(at(1)), [""; 0], "{row}");
        fleet.change(change);
        let expect = drifts.then_some("RequirementsDrifted");
        assert_eq!(fleet.drift_causes(at(1)), Vec::from_iter(expect), "{row}");
    }
}

#[test]
fn only_nodes_of_the_changed_pool_drift() {
    let mut fleet = Fleet::new(vec![pool("p"), pool("q")]);
    fleet.node("n0", "p");
    fleet.node("n1", "q");
    fleet.configure(|own| require(&mut own.pools[1], "a", Requirement::is_in(["b"])));
    assert_eq!(fleet.disrupted(Reason::Drifted, at(1)), ["n1"]);
}

#[test]
fn only_pool_changes_that_need_a_new_instance_cause_drift() {
    let rows: [(&str, Change, &[&str]); 8] = [
        ("node class", |it| it.node_class = Some("other".into()), &["NodePoolDrifted"]),
        ("labels", |it| drop(it.labels.insert("a".into(), "b".into())), &[]),
        ("annotations", |it| drop(it.annotations.insert("a".into(), "b".into())), &[]),
        ("taints", |it| it.taints.push(Taint::new("a", Effect::NoSchedule)), &[]),
        ("startup taints", |it| it.startup_taints.push(Taint::new("a", Effect::NoSchedule)), &[]),
        ("expiry", |it| it.expire_hard_after = Some(jiff::SignedDuration::from_hours(900)), &[]),
        ("limits", |it| it.limits.nodes = Some(0), &[]),
        ("weight", |it| it.weight = 7, &[]),
    ];
    for (row, change, expect) in rows {
        let mut fleet = Fleet::of(1);
        fleet.change(change);
        assert_eq!(fleet.drift_causes(at(1)), expect, "{row}");
    }
}

#[test]
fn missing_or_other_version_hashes_cause_no_drift() {
    let rows = [
        ("v2:0000000000000000:0000000000000000", 1),
        ("v1:0000000000000000:0000000000000000", 0),
        ("v2:0000000000000000", 0),
        ("12345678901234567890", 0),
        ("", 0),
    ];
    for (hash, drifted) in rows {
        for of_class in [false, true] {
            let mut fleet = Fleet::new(vec![Pool { node_class: Some("c".into()), ..pool("p") }]);
            let name = "c".into();
            fleet.configure(|own| {
                own.node_classes = vec![NodeClass { name, ..NodeClass::default() }]
            });
            fleet.node("n0", "p");
            let record = &mut fleet.claim("n0").record;
            let own = match of_class {
                true => &mut record.node_class_hash,
                false => &mut record.pool_hash,
            };
            *own = hash.to_owned();
            assert_eq!(fleet.drift_causes(at(1)).len(), drifted, "{hash:?} {of_class}");
        }
    }
}

/// Returns a catalog with the type m6i.large and these offerings.
fn sold(offers: &[(&str, CapacityType, bool)]) -> Arc<Catalog> {
    let shipped = Catalog::shipped();
    let own = shipped.get("m6i.large").expect("it ships").clone();
    let price = own.offerings[0].price;
    let offerings = offers.iter().map(|(zone, capacity_type, available)| Offering {
        zone: (*zone).into(),
        capacity_type: *capacity_type,
        price,
        available: *available,
        reservation: None,
    });
    let offerings = offerings.collect();
    Arc::new(Catalog::new([InstanceType { offerings, ..own }]))
}

#[test]
fn node_drifts_an_hour_after_launch_if_its_offering_disappears() {
    use CapacityType::{OnDemand, Reserved, Spot};
    let rows: [(&str, CapacityType, Sold, bool); 10] = [
        ("offered", OnDemand, &[("us-east-1a", OnDemand, true)], false),
        ("out of stock", OnDemand, &[("us-east-1a", OnDemand, false)], false),
        ("no offerings", OnDemand, &[], true),
        ("another zone", OnDemand, &[("us-east-1b", OnDemand, true)], true),
        ("another way", OnDemand, &[("us-east-1a", Spot, true)], true),
        ("reserved", Reserved, &[("us-east-1a", Reserved, true)], false),
        ("demoted", Reserved, &[("us-east-1a", OnDemand, true)], false),
        (
            "both",
            Reserved,
            &[("us-east-1a", OnDemand, true), ("us-east-1a", Reserved, true)],
            false,
        ),
        ("neither", Reserved, &[("us-east-1a", Spot, true)], true),
        ("spot in another zone", Spot, &[("us-east-1b", Spot, true)], true),
    ];
    for (row, bought, offers, drifts) in rows {
        let mut fleet = Fleet::of(1);
        fleet.instance("n0").offering.capacity_type = bought;
        fleet.state.apply_catalog(sold(offers));
        assert_eq!(fleet.drift_causes(at(60)), [""; 0], "{row}");
        let expect = drifts.then_some("InstanceTypeNotFound");
        assert_eq!(fleet.drift_causes(at(61)), Vec::from_iter(expect), "{row}");
        // Without the price list, the on-demand offerings are missing.
        let unpriced = [sold(offers).types().next().expect("a type").name.clone()].into();
        let catalog = Catalog::clone(&sold(offers)).with_unpriced(unpriced);
        fleet.state.apply_catalog(Arc::new(catalog));
        let expect = expect.filter(|_| bought == Spot);
        assert_eq!(fleet.drift_causes(at(61)), Vec::from_iter(expect), "{row}");
    }
}

#[test]
fn type_drift_uses_the_instance_type_and_not_the_node_label() {
    let mut fleet = Fleet::of(1);
    fleet.state.apply_catalog(Arc::new(Catalog::default()));
    assert_eq!(fleet.drift_causes(at(61)), [""; 0], "an empty catalog causes no drift");
    let types = ["m7i.large"].map(|name| Catalog::shipped().get(name).expect("it ships").clone());
    fleet.state.apply_catalog(Arc::new(Catalog::new(types)));
    assert_eq!(fleet.drift_causes(at(61)), ["InstanceTypeNotFound"]);
    // The instance type counts, and not the node label, which others may change.
    let mut fleet = Fleet::of(1);
    fleet.change_node("n0", |own| drop(own.labels.remove("node.kubernetes.io/instance-type")));
    assert_eq!(fleet.drift_causes(at(61)), [""; 0]);
}

#[test]
fn first_of_several_drift_causes_is_reported() {
    let mut fleet = Fleet::of(1);
    fleet.state.apply_catalog(sold(&[]));
    assert_eq!(fleet.drift_causes(at(61)), ["InstanceTypeNotFound"]);
    fleet.change(|own| require(own, "a", Requirement::is_in(["b"])));
    assert_eq!(fleet.drift_causes(at(61)), ["RequirementsDrifted"]);
    fleet.drift();
    assert_eq!(fleet.drift_causes(at(61)), ["NodePoolDrifted"]);
    fleet.configure(|own| own.pools.clear());
    assert_eq!(fleet.drift_causes(at(61)), ["NodePoolRemoved"]);
}

#[test]
fn drift_budgets_count_nodes_already_being_disrupted() {
    let mut fleet = Fleet::of(10);
    fleet.drift();
    let disrupted_with = |fleet: &mut Fleet, nodes: BudgetNodes| {
        fleet.change(|own| own.disruption.budgets[0].nodes = nodes);
        fleet.disrupted(Reason::Drifted, at(1)).len()
    };
    assert_eq!(disrupted_with(&mut fleet, BudgetNodes::Nodes(3)), 3);
    assert_eq!(disrupted_with(&mut fleet, BudgetNodes::Percent(0)), 0);
    assert_eq!(disrupted_with(&mut fleet, BudgetNodes::Percent(100)), 10);
    assert_eq!(disrupted_with(&mut fleet, BudgetNodes::Percent(11)), 2);
    fleet.start_disruption("n0", Reason::Underutilized);
    fleet.change_node("n1", |own| own.ready = false);
    // Both the disrupted and the unready node count, and the unready node may still be disrupted.
    assert_eq!(disrupted_with(&mut fleet, BudgetNodes::Nodes(3)), 2);
    let expect = Some(budget_verdict(3));
    assert_eq!(fleet.verdict("n9", Reason::Drifted, at(1)), expect);
    // Each pool has its own budget.
    let mut fleet = Fleet::new(vec![pool("p"), pool("q")]);
    fleet.configure(|own| {
        for pool in &mut own.pools {
            pool.disruption.budgets[0].nodes = BudgetNodes::Nodes(2);
        }
    });
    for at in 0..4 {
        fleet.node(&format!("p{at}"), "p");
        fleet.node(&format!("q{at}"), "q");
    }
    fleet.drift();
    assert_eq!(fleet.disrupted(Reason::Drifted, at(1)), ["p0", "p1", "q0", "q1"]);
}

#[test]
fn empty_drifted_nodes_are_disrupted_first_then_the_oldest() {
    let mut fleet = Fleet::of(3);
    fleet.node("n3", "p");
    fleet.drift();
    fleet.claim("n0").record.created = at(2);
    fleet.claim("n1").record.created = at(1);
    fleet.claim("n3").record.created = at(3);
    assert_eq!(fleet.disrupted(Reason::Drifted, at(9)), ["n3", "n2", "n1", "n0"]);
    fleet.change(|own| own.disruption.budgets[0].nodes = BudgetNodes::Nodes(2));
    assert_eq!(fleet.disrupted(Reason::Drifted, at(9)), ["n3", "n2"]);
}

#[test]
fn empty_drifted_node_is_disrupted_as_empty_if_allowed() {
    let mut fleet = Fleet::new(vec![pool("p")]);
    fleet.node("n0", "p");
    fleet.drift();
    assert_eq!(fleet.disrupted(Reason::Drifted, at(9)), ["n0"]);
    fleet.change(|own| own.disruption.consolidate_after = Some(jiff::SignedDuration::ZERO));
    assert_eq!(fleet.disrupted(Reason::Empty, at(9)), ["n0"]);
    assert_eq!(fleet.disrupted(Reason::Drifted, at(9)), [""; 0]);
}

#[test]
fn annotated_uninitialized_and_nominated_nodes_are_kept() {
    let mut fleet = Fleet::of(4);
    fleet.drift();
    let annotate = |fleet: &mut Fleet, node: &str, value: &str| {
        let value = value.to_owned();
        fleet.change_node(node, |own| drop(own.annotations.insert(DO_NOT_DISRUPT.into(), value)));
    };
    annotate(&mut fleet, "n0", "true");
    annotate(&mut fleet, "n1", "false");
    fleet.change_node("n2", |own| drop(own.labels.remove("karpenter.sh/initialized")));
    fleet.state.nominate("n3".into(), at(2));
    assert_eq!(fleet.disrupted(Reason::Drifted, at(1)), ["n1"]);
    let verdict = |node| fleet.verdict(node, Reason::Drifted, at(1));
    let annotated = Verdict::Blocked(DisruptionBlocker::Annotated(DO_NOT_DISRUPT));
    assert_eq!(verdict("n0"), Some(annotated));
    assert_eq!(verdict("n2"), Some(Verdict::NotInitialized));
    assert_eq!(verdict("n3"), Some(Verdict::Nominated));
    assert_eq!(fleet.disrupted(Reason::Drifted, at(3)), ["n1", "n3"]);
}

#[test]
fn do_not_disrupt_pod_blocks_drift_without_a_termination_grace_period() {
    for grace in [false, true] {
        let mut fleet = Fleet::of(2);
        fleet.drift();
        let mut own = pod("n0");
        own.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
        fleet.apply(own);
        let minute = jiff::SignedDuration::from_mins(1);
        fleet.claim("n0").record.termination_grace_period = grace.then_some(minute);
        let expect: &[&str] = if grace { &["n0", "n1"] } else { &["n1"] };
        assert_eq!(fleet.disrupted(Reason::Drifted, at(1)), expect);
        // An annotation of the node itself still blocks.
        let annotate = |own: &mut outrigger::model::node::Node| {
            own.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
        };
        fleet.change_node("n0", annotate);
        assert_eq!(fleet.disrupted(Reason::Drifted, at(1)), ["n1"]);
    }
}

#[test]
fn nodes_of_a_removed_pool_are_disrupted_by_tenths_or_kept() {
    let mut fleet = Fleet::of(15);
    fleet.configure(|own| own.pools.clear());
    assert_eq!(fleet.disrupted(Reason::Drifted, at(1)), ["n0", "n1"]);
    assert_eq!(fleet.drift_causes(at(1)), ["NodePoolRemoved"; 2]);
    fleet.start_disruption("n0", Reason::Drifted);
    assert_eq!(fleet.disrupted(Reason::Drifted, at(1)), ["n1"]);
    fleet.configure(|own| own.safeguards.removed_pools = RemovedPools::Keep);
    assert_eq!(fleet.plan(at(1)).retire, []);
    assert_eq!(fleet.verdict("n1", Reason::Empty, at(1)), Some(Verdict::NoPool));
}

#[test]
fn removed_pool_label_does_not_count_as_a_removed_pool() {
    let mut fleet = Fleet::of(1);
    fleet.change_node("n0", |own| drop(own.labels.remove(POOL)));
    assert_eq!(fleet.plan(at(1)).retire, []);
    // A claim of a renamed pool does not drift either if the label of its Node was changed.
    let mut fleet = Fleet::of(1);
    fleet.claim("n0").record.pool = "old".into();
    assert_eq!(fleet.plan(at(1)).retire, []);
}
