//! Nodes whose instance differs from its current node class in AWS.

use std::sync::Arc;

use outrigger::catalog::node_class::{ClassCatalog, NodeClassSupply, NotReady};
use outrigger::model::instance::InstanceFacts;
use outrigger::model::node_class::NodeClass;
use outrigger::model::node_class::resolved::{ResolvedNodeClass, Subnet};
use outrigger::model::pool::Pool;
use outrigger::model::requirement::Requirement;

use super::{Fleet, at, pool};

/// A node of a class, in subnet `old` with image `old`.
fn fleet() -> Fleet {
    let class = NodeClass { name: "c".into(), ..NodeClass::default() };
    let mut fleet = Fleet::new(vec![Pool { node_class: Some("c".into()), ..pool("p") }]);
    fleet.configure(|own| own.node_classes = vec![class]);
    fleet.node("n0", "p");
    fleet.instance("n0").facts = Some(Box::new(InstanceFacts {
        image: Some("old".into()),
        subnet: Some("old".into()),
        ..InstanceFacts::default()
    }));
    fleet
}

/// Applies the resolved image and subnet of the class, or the reason why it is unready.
fn resolve(fleet: &mut Fleet, found: Result<(&str, &str), &str>) {
    let catalog = Arc::clone(&fleet.state.catalog);
    let supply = found.map_err(|why| NotReady::Condition(why.to_owned())).map(|(image, subnet)| {
        let subnet = Subnet {
            id: subnet.into(),
            zone: "us-east-1a".into(),
            zone_id: "use1-az1".into(),
            free: 9,
        };
        ClassCatalog {
            catalog,
            images: [("m6i.large".into(), image.to_owned())].into(),
            found: Some(Arc::new(ResolvedNodeClass {
                subnets: vec![subnet],
                ..ResolvedNodeClass::default()
            })),
        }
    });
    let all = [("c".into(), NodeClassSupply { supply })];
    fleet.state.apply_class_supplies(Arc::new(all.into()));
}

#[test]
fn instance_drifts_by_the_resolved_node_class() {
    let mut fleet = fleet();
    assert_eq!(fleet.drift_causes(at(1)), [""; 0], "the class is not resolved yet");
    resolve(&mut fleet, Ok(("old", "old")));
    assert_eq!(fleet.drift_causes(at(1)), [""; 0]);
    resolve(&mut fleet, Ok(("new", "new")));
    assert_eq!(fleet.drift_causes(at(1)), ["AMIDrift"]);
    resolve(&mut fleet, Err("SubnetsNotFound"));
    assert_eq!(fleet.drift_causes(at(1)), [""; 0], "an unready class causes no drift");
    resolve(&mut fleet, Ok(("old", "new")));
    assert_eq!(fleet.drift_causes(at(1)), ["SubnetDrift"]);
    resolve(&mut fleet, Ok(("old", "old")));
    assert_eq!(fleet.drift_causes(at(1)), [""; 0], "the instance matches its class again");
}

#[test]
fn node_class_and_pool_drift_precede_resolved_differences() {
    let mut fleet = fleet();
    resolve(&mut fleet, Ok(("new", "new")));
    fleet.configure(|own| own.node_classes[0].user_data = "x".into());
    assert_eq!(fleet.drift_causes(at(1)), ["NodeClassDrift"]);
    fleet.change(|own| own.requirements.add("a", Requirement::is_in(["b"])));
    assert_eq!(fleet.drift_causes(at(1)), ["RequirementsDrifted"]);
}
