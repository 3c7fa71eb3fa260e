//! Launches whose instances have the tag of a batch: each instance determines the id of its claim.

use std::collections::BTreeSet;

use outrigger::engine::command::IssuedCommand;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::claim::{TAG_BATCH, TAG_CLAIM, TAG_FLEET, claim_id};
use outrigger::model::cluster::ManagementMode;
use outrigger::model::id::ClaimId;
use outrigger::model::instance::{Instance, InstanceState};
use outrigger::model::watched_object::WatchedObject;
use outrigger::provider::{CommandResult, FailureKind};

use super::termination::restart;
use super::{Stage, anti_affine_pods};

/// Launches the instance of a command as one of a batch, and returns it.
fn launch(stage: &mut Stage, issued: &IssuedCommand) -> Instance {
    let CommandResult::Launched(mut instance) = stage.answer(&issued.command) else {
        panic!("no launch: {issued:?}");
    };
    let mut tags = (*instance.tags).clone();
    tags.remove(TAG_CLAIM);
    tags.insert(TAG_BATCH.to_owned(), "batch".to_owned());
    tags.insert(TAG_FLEET.to_owned(), "fleet".to_owned());
    instance.tags = tags.into();
    stage.instances.insert(instance.id.to_string(), instance.clone());
    instance
}

/// A cluster with three pending pods that cannot share a node, and their launches.
fn launching() -> (Stage, Vec<IssuedCommand>) {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], anti_affine_pods(["a", "b", "c"]));
    let issued = stage.run(10, &["launch"]);
    assert_eq!(issued.len(), 3);
    (stage, issued)
}

fn claims(stage: &Stage) -> BTreeSet<ClaimId> {
    stage.engine.state().ledger.claims.keys().cloned().collect()
}

fn names(instances: &[Instance]) -> BTreeSet<ClaimId> {
    instances.iter().map(|it| claim_id(&it.tags, &it.id).expect("a claim")).collect()
}

/// Checks that each pod has a place on one of these claims, and that nothing else is launched,
/// also after a restart.
fn assert_kept(stage: &mut Stage, named: &BTreeSet<ClaimId>) {
    for again in [false, true] {
        if again {
            restart(stage);
        }
        stage.run(20, &[]);
        assert_eq!(&claims(stage), named, "restarted: {again}");
        assert_eq!(stage.launches.len(), 3);
        assert!(stage.engine.state().ledger.claims.values().all(|claim| {
            let id = &claim.record.id;
            let instance = claim.instance.as_ref().expect("an instance");
            stage.engine.state().ledger.by_instance(instance.id.as_str()) == Some(id)
        }));
    }
    for number in 0..3 {
        stage.apply(WatchedObject::Node(Box::new(stage.node(number))));
    }
    stage.run(20, &[]);
    assert_eq!(stage.untainted(), 3);
    assert_eq!((stage.launches.len(), stage.count("terminate")), (3, 0));
}

#[test]
fn launched_instances_name_their_claims() {
    let (mut stage, issued) = launching();
    let planned = claims(&stage);
    let mut instances = Vec::new();
    for issued in &issued {
        let instance = launch(&mut stage, issued);
        stage.event(Event::Answered(issued.id, CommandResult::Launched(instance.clone())));
        instances.push(instance);
    }
    let named = names(&instances);
    assert!(named.is_disjoint(&planned) && named.len() == 3);
    assert_eq!(claims(&stage), named);
    // The pods of each claim keep their place.
    let state = stage.engine.state();
    assert!(state.ledger.claims.values().all(|claim| claim.pods.len() == 1));
    stage.reports.extend(std::iter::from_fn(|| stage.engine.next_report()));
    let is_named = |report: &&Report| matches!(report, Report::ClaimNamed { .. });
    assert_eq!(stage.reports.iter().filter(is_named).count(), 3);
    assert_kept(&mut stage, &named);
}

/// A listing may show instances before the response arrives, or if the response is lost. The
/// launches in flight are not counted twice. After five minutes the instances get claims.
#[test]
fn listed_instances_belong_to_the_launches_in_flight() {
    for (lost, seconds, found) in [(false, 40, 0), (true, 40, 0), (true, 420, 3)] {
        let (mut stage, issued) = launching();
        let instances: Vec<Instance> =
            issued.iter().map(|issued| launch(&mut stage, issued)).collect();
        let named = names(&instances);
        if lost {
            let kind = FailureKind::Unknown;
            for issued in &issued {
                let text = "no response".to_owned();
                stage.event(Event::Answered(issued.id, CommandResult::Failed { kind, text }));
            }
        }
        let mut repeated = stage.run(seconds, &["launch"]);
        let answered =
            if lost { repeated.split_off(repeated.len().saturating_sub(3)) } else { issued };
        assert_eq!(answered.len(), 3, "the launches are repeated");
        assert_eq!(claims(&stage).len(), 3 + found, "{seconds} s");
        // The provider gives the instances to the launches in any order.
        for (issued, instance) in answered.iter().zip(instances.iter().rev()) {
            let answer = CommandResult::Launched(instance.clone());
            stage.event(Event::Answered(issued.id, answer));
        }
        assert_eq!(claims(&stage), named, "lost: {lost}");
        let ledger = &stage.engine.state().ledger;
        let pods = ledger.claims.values().flat_map(|claim| &claim.pods);
        assert_eq!(pods.collect::<BTreeSet<_>>().len(), 3);
        assert_kept(&mut stage, &named);
    }
}

/// After lookups it is certain which instances a lost call has launched: the others are launched
/// with other claims.
#[test]
fn launch_without_an_instance_is_planned_again_after_a_lost_response() {
    let (mut stage, issued) = launching();
    let found = launch(&mut stage, &issued[0]);
    for issued in &issued {
        let (kind, text) = (FailureKind::Unknown, "no response".to_owned());
        stage.event(Event::Answered(issued.id, CommandResult::Failed { kind, text }));
    }
    let repeated = stage.run(20, &["launch"]);
    for (index, issued) in repeated.iter().enumerate() {
        let answer = match index {
            0 => CommandResult::Launched(found.clone()),
            _ => CommandResult::LaunchRefused(Vec::new()),
        };
        stage.event(Event::Answered(issued.id, answer));
    }
    let mut instances = vec![found];
    let again = stage.run(20, &["launch"]);
    assert_eq!(again.len(), 2, "{again:?}");
    for issued in &again {
        let instance = launch(&mut stage, issued);
        stage.event(Event::Answered(issued.id, CommandResult::Launched(instance.clone())));
        instances.push(instance);
    }
    assert_kept(&mut stage, &names(&instances));
}

/// An instance that ended before its response arrived is no instance of the claim.
#[test]
fn launch_of_an_ended_instance_is_planned_again() {
    let (mut stage, issued) = launching();
    let mut dead = launch(&mut stage, &issued[0]);
    dead.state = InstanceState::Terminated;
    stage.instances.insert(dead.id.to_string(), dead.clone());
    stage.event(Event::Answered(issued[0].id, CommandResult::Launched(dead.clone())));
    let again = stage.run(20, &["launch"]);
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(names(&[dead]).is_disjoint(&claims(&stage)));
}
