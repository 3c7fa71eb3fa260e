//! Unavailable offerings whose back-off has ended: one launch retries each offering before the
//! others.

use outrigger::engine::command::{Command, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::instance::{CapacityType, OfferingKey};
use outrigger::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, ZONE};
use outrigger::model::requirement::Requirement;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::{CommandResult, OfferingRefusal, RefusalKind};

use super::{Stage, fleet_view, pending_pod};

/// Each pod needs a node of its own.
const PODS: usize = 10;

/// Selects some of the offerings of a launch.
pub(super) type OfferingFilter = fn(&OfferingKey) -> bool;

fn all(_: &OfferingKey) -> bool {
    true
}

fn in_zone_a(offering: &OfferingKey) -> bool {
    offering.zone.as_str() == "us-east-1a"
}

fn in_zone_b(offering: &OfferingKey) -> bool {
    offering.zone.as_str() == "us-east-1b"
}

pub(super) fn offerings(issued: &IssuedCommand) -> &[OfferingKey] {
    match &issued.command {
        Command::Launch(launch) => &launch.offerings,
        other => panic!("{other:?}"),
    }
}

impl Stage {
    /// Refuses the launch for one pod, adds many pods after the back-off, returns their launches.
    fn launches_after_back_off(&mut self, which: OfferingFilter) -> Vec<IssuedCommand> {
        let first = pending_pod("first");
        self.apply(WatchedObject::Pod(Box::new(first.clone())));
        let launch = self.run(10, &["launch"]).remove(0);
        self.refuse(&launch, which, RefusalKind::InsufficientCapacity);
        self.event(Event::Deleted(ObjectKind::Pod, first.key));
        self.run(181, &[]);
        self.add_pods("p");
        self.run(5, &["launch"])
    }

    fn add_pods(&mut self, name: &str) {
        for number in 0..PODS {
            let pod = pending_pod(&format!("{name}{number}"));
            self.apply(WatchedObject::Pod(Box::new(pod)));
        }
    }

    /// Answers a launch: the selected offerings are refused for this reason.
    pub(super) fn refuse(
        &mut self,
        launch: &IssuedCommand,
        which: OfferingFilter,
        kind: RefusalKind,
    ) {
        let refused = offerings(launch).iter().filter(|offering| which(offering));
        let refusal = |offering: &OfferingKey| OfferingRefusal { offering: offering.clone(), kind };
        let answer = CommandResult::LaunchRefused(refused.map(refusal).collect());
        self.event(Event::Answered(launch.id, answer));
    }

    /// Answers a launch with an instance.
    pub(super) fn succeed(&mut self, launch: &IssuedCommand) {
        let answer = self.answer(&launch.command);
        self.event(Event::Answered(launch.id, answer));
    }
}

/// The result of [`Stage::launches_after_back_off`] for a pool of spot instances of one type in
/// these zones.
fn after_a_back_off(zones: &[&str], which: OfferingFilter) -> (Stage, Vec<IssuedCommand>) {
    let mut stage = stage(&["spot"], zones);
    let launches = stage.launches_after_back_off(which);
    (stage, launches)
}

/// A stage with a pool of one type, these capacity types and these zones.
fn stage(capacity_types: &[&str], zones: &[&str]) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| {
        let all = &mut cluster.pools[0].requirements;
        all.add(INSTANCE_TYPE, Requirement::is_in(["m5.large"]));
        all.add(CAPACITY_TYPE, Requirement::is_in(capacity_types.iter().copied()));
        all.add(ZONE, Requirement::is_in(zones.iter().copied()));
    });
    stage.sync(vec![], vec![]);
    stage
}

#[test]
fn one_launch_retries_a_refused_offering_before_the_others() {
    let (mut stage, tried) = after_a_back_off(&["us-east-1a"], all);
    assert_eq!(tried.len(), 1);
    stage.succeed(&tried[0]);
    let followers = stage.run(2, &["launch"]);
    assert_eq!(followers.len(), PODS - 1, "the retry succeeded");
    // After a success no launch waits for a retry any more.
    followers.iter().for_each(|launch| stage.succeed(launch));
    stage.add_pods("q");
    assert_eq!(stage.run(5, &["launch"]).len(), PODS);
}

#[test]
fn second_refusal_doubles_the_back_off_of_an_offering() {
    let (mut stage, tried) = after_a_back_off(&["us-east-1a"], all);
    stage.refuse(&tried[0], all, RefusalKind::InsufficientCapacity);
    assert_eq!(stage.run(5 * 60, &["launch"]).len(), 0, "the back-off is twice as long");
    assert_eq!(stage.run(70, &["launch"]).len(), 1, "then one launch retries");
}

#[test]
fn launches_wait_only_seconds_for_the_retry_of_an_offering() {
    let (mut stage, tried) = after_a_back_off(&["us-east-1a"], all);
    assert_eq!((tried.len(), stage.run(10, &["launch"]).len()), (1, 0));
    assert_eq!(stage.run(15, &["launch"]).len(), PODS - 1);
}

/// Zone b is not cheaper than zone a, so the launches lose nothing without it.
#[test]
fn launches_do_not_wait_if_the_cheapest_offering_was_not_refused() {
    let (mut stage, launches) = after_a_back_off(&["us-east-1a", "us-east-1b"], in_zone_b);
    assert_eq!(launches.len(), PODS);
    let retries = |issued: &&IssuedCommand| offerings(issued).iter().any(in_zone_b);
    assert_eq!(launches.iter().filter(retries).count(), 1);
    launches.iter().for_each(|launch| stage.succeed(launch));
    stage.run(20, &[]);
    assert_eq!(stage.launches.len(), PODS, "each pod has a node");
}

/// EC2 chooses among the offerings of a launch. It has not refused the others.
#[test]
fn launches_continue_after_the_retry_succeeds_with_another_offering() {
    let (mut stage, tried) = after_a_back_off(&["us-east-1a", "us-east-1b"], in_zone_a);
    assert_eq!(tried.len(), 1, "the offering is the cheapest for all pods");
    let mut answer = stage.answer(&tried[0].command);
    if let CommandResult::Launched(instance) = &mut answer {
        instance.offering = offerings(&tried[0])[1].clone();
    }
    stage.event(Event::Answered(tried[0].id, answer));
    assert_eq!(stage.run(2, &["launch"]).len(), PODS - 1);
}

/// An on-demand instance of the same type costs more, and EC2 may have a spot instance in a moment.
#[test]
fn launches_do_not_buy_a_dearer_offering_during_the_retry() {
    let mut stage = stage(&["spot", "on-demand"], &["us-east-1a"]);
    let is_spot = |offering: &OfferingKey| offering.capacity_type == CapacityType::Spot;
    let tried = stage.launches_after_back_off(is_spot);
    assert_eq!(tried.len(), 1);
    stage.succeed(&tried[0]);
    let followers = stage.run(2, &["launch"]);
    assert!(followers.iter().all(|issued| is_spot(&offerings(issued)[0])));
    assert_eq!(followers.len(), PODS - 1);
}

/// The fleet grants all launches before any of them is sent.
#[test]
fn one_launch_retries_a_refused_offering_under_fleet_limits() {
    let mut stage = stage(&["spot"], &["us-east-1a"]);
    stage.event(Event::FleetChanged(Some(fleet_view(1_000))));
    stage.run(5, &[]);
    let tried = stage.launches_after_back_off(all);
    assert_eq!(tried.len(), 1);
    stage.succeed(&tried[0]);
    assert_eq!(stage.run(2, &["launch"]).len(), PODS - 1);
}

#[test]
fn launch_with_min_values_for_zones_requests_all_of_them() {
    let zones = ["us-east-1a", "us-east-1b"];
    let mut stage = stage(&["spot"], &zones);
    stage.change(|cluster| {
        let mut varied = Requirement::is_in(zones);
        varied.min_values = Some(2);
        cluster.pools[0].requirements.add(ZONE, varied);
    });
    let launches = stage.launches_after_back_off(in_zone_b);
    let both = |issued: &&IssuedCommand| offerings(issued).len() == 2;
    assert_eq!(launches.iter().filter(both).count(), PODS);
}
