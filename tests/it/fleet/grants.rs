//! Grants of the fleet to clusters, and their notifications.

use jiff::SignedDuration;
use outrigger::engine::command::Command;
use outrigger::fleet::PATIENCE;
use outrigger::model::cluster::{ManagementMode, Simulated};
use outrigger::model::fleet::FleetLimits;
use outrigger::model::instance::{CapacityType, OfferingKey, UnavailableKey};
use outrigger::provider::{CommandResult, FailureKind};

use super::fixture::{Stage, cluster, cores, limits, reserved};

/// Returns a fleet with two clusters that have reported no claims.
fn two_clusters(limits: FleetLimits) -> Stage {
    let mut stage = Stage::new(limits, &[cluster("east"), cluster("west")]);
    stage.report_all("east", &[]);
    stage.report_all("west", &[]);
    stage
}

#[test]
fn fleet_limits_are_shared_by_all_clusters() {
    let mut stage = two_clusters(limits(10, 9));
    stage.assert_granted("east", "a", cores(6));
    let words = "cpu limit 10 of the fleet leaves 4, the claim needs up to 5";
    stage.assert_denied("west", "b", cores(5), words);
    stage.assert_granted("west", "b", cores(4));
    // A repeated request counts once.
    stage.assert_granted("west", "b", cores(4));
    stage.assert_denied("east", "c", cores(1), "leaves 0");
    // The launched instance is smaller than the granted maximum.
    stage.report_change("east", "a", Some(cores(5)));
    stage.assert_granted("east", "c", cores(1));
    stage.report_change("west", "b", None);
    stage.assert_granted("east", "d", cores(4));
    assert_eq!(stage.fleet.total_usage(&"east".into()).1, 3);
    assert_eq!(stage.fleet.total_usage(&"west".into()).1, 0);

    let mut stage = two_clusters(limits(10, 1));
    stage.assert_granted("east", "a", cores(1));
    stage.assert_denied("west", "b", cores(1), "nodes limit 1 of the fleet is reached");
}

#[test]
fn denial_contains_the_remaining_share() {
    let mut stage = two_clusters(limits(10, 9));
    stage.assert_granted("east", "a", cores(6));
    let CommandResult::Denied { view, .. } = stage.request_grant("west", "b", cores(5)) else {
        panic!("the request must be denied");
    };
    assert_eq!(view.share.capacity, [("cpu".to_owned(), 4000)]);
    assert_eq!((view.share.nodes, &view.closed), (Some(8), &None));
}

#[test]
fn view_numbers_increase_in_denials_and_notifications() {
    let mut stage = two_clusters(limits(10, 9));
    let number = |stage: &Stage| stage.views["west"].as_ref().expect("a view").number;
    let mut last = number(&stage);
    for claim in ["a", "b", "c"] {
        stage.assert_granted("east", claim, cores(2));
        stage.assert_denied("west", claim, cores(9), "leaves");
        assert!(number(&stage) > last, "{claim} was denied");
        last = number(&stage);
        stage.report_change("east", claim, None);
        stage.advance(5);
        assert!(number(&stage) > last, "{claim} was released");
        last = number(&stage);
    }
}

#[test]
fn reported_usage_counts_even_above_the_limit() {
    let mut stage = two_clusters(limits(10, 9));
    stage.report_all("east", &[("a", cores(8)), ("b", cores(8))]);
    stage.assert_denied("west", "c", cores(1), "leaves -6");
    stage.report_change("east", "a", None);
    stage.assert_granted("west", "c", cores(2));
    // A full report releases the claims that it does not contain.
    stage.report_all("east", &[]);
    stage.assert_granted("west", "d", cores(8));
}

#[test]
fn grants_wait_until_all_clusters_have_reported() {
    let mut stage = Stage::new(limits(10, 9), &[cluster("east"), cluster("west")]);
    stage.assert_denied("east", "a", cores(1), "the cluster has not reported its resources yet");
    stage.report_all("east", &[]);
    stage.assert_denied("east", "a", cores(1), "cluster west has not reported its resources");
    assert!(stage.views["east"].as_ref().expect("a view").closed.is_some());
    // A change is no full report.
    let answer = stage.report_change("west", "b", Some(cores(1)));
    let conflict = |kind| kind == FailureKind::Conflict;
    assert!(matches!(answer, CommandResult::Failed { kind, .. } if conflict(kind)));
    stage.report_all("west", &[("b", cores(7))]);
    assert_eq!(stage.share("east"), (3, Some(8)), "the view is sent at once");
    stage.assert_granted("east", "a", cores(3));
}

#[test]
fn silent_cluster_blocks_grants_only_for_a_limited_time() {
    let mut silent = cluster("west");
    silent.limits.capacity = vec![("cpu".to_owned(), 4000)];
    silent.limits.nodes = Some(2);
    let mut stage = Stage::new(limits(10, 9), &[cluster("east"), silent]);
    stage.report_all("east", &[]);
    stage.advance(PATIENCE.as_secs() - 1);
    stage.assert_denied("east", "a", cores(1), "cluster west has not reported its resources");
    stage.advance(2);
    // The silent cluster counts with its own limits.
    assert_eq!(stage.share("east"), (6, Some(7)));
    stage.assert_denied("east", "a", cores(7), "leaves 6");
    stage.assert_granted("east", "a", cores(6));
    // It reports later with more than its limits: the report counts.
    stage.report_all("west", &[("b", cores(5))]);
    stage.assert_denied("west", "c", cores(1), "leaves -1");
    stage.report_change("east", "a", None);
    stage.assert_granted("west", "c", cores(1));
}

#[test]
fn grants_do_not_wait_for_observed_clusters() {
    let mut observed = cluster("west");
    observed.mode = ManagementMode::Observe;
    let mut stage = Stage::new(limits(10, 9), &[cluster("east"), observed.clone()]);
    stage.report_all("east", &[]);
    stage.assert_granted("east", "a", cores(1));
    // Its usage still counts.
    stage.report_all("west", &[("b", cores(8))]);
    stage.assert_denied("east", "c", cores(2), "leaves 1");
    // A removed cluster uses nothing.
    stage.configure(limits(10, 9), &[cluster("east")]);
    stage.assert_granted("east", "c", cores(9));
}

#[test]
fn restarted_engine_must_report_before_it_gets_grants() {
    let mut stage = two_clusters(limits(10, 9));
    stage.assert_granted("east", "a", cores(6));
    stage.fleet.on_engine_start(&"east".into(), stage.now);
    stage.assert_denied("east", "b", cores(1), "the cluster has not reported");
    // Meanwhile the earlier usage counts, and the other cluster still gets grants.
    stage.assert_denied("west", "c", cores(5), "leaves 4");
    stage.assert_granted("west", "c", cores(4));
    stage.report_all("east", &[]);
    stage.assert_granted("east", "b", cores(6));
}

#[test]
fn reservation_instances_are_never_granted_twice() {
    // Without fleet limits: the clusters share the reservations.
    let mut stage = two_clusters(FleetLimits::default());
    stage.assert_granted("east", "a", reserved("cr-1", 2));
    stage.assert_granted("west", "b", reserved("cr-1", 2));
    stage.assert_granted("west", "b", reserved("cr-1", 2));
    let words = "all 2 instances of capacity reservation cr-1 are in use";
    stage.assert_denied("east", "c", reserved("cr-1", 2), words);
    stage.assert_granted("east", "c", reserved("cr-2", 1));
    stage.report_change("west", "b", None);
    stage.assert_granted("east", "d", reserved("cr-1", 2));
}

#[test]
fn changes_are_announced_at_most_once_per_second() {
    let mut stage = two_clusters(limits(100, 90));
    stage.advance(5);
    let before = stage.view_counts["west"];
    for at in 0..20 {
        stage.assert_granted("east", &format!("a{at}"), cores(1));
    }
    stage.advance(5);
    // The first change is announced at once, the others together.
    assert!(stage.view_counts["west"] - before <= 2, "{:?}", stage.view_counts);
    assert_eq!(stage.share("west"), (80, Some(70)));
    let before = stage.view_counts.clone();
    stage.advance(3600);
    assert_eq!(stage.view_counts, before, "nothing has changed");
    stage.fleet.on_event_missed(&"west".into(), stage.now);
    stage.advance(2);
    assert_eq!(stage.view_counts["west"], before["west"] + 1);
}

#[test]
fn clusters_that_share_nothing_get_no_views() {
    let elsewhere = |name: &str, region: &str| {
        let mut own = cluster(name);
        own.region = region.into();
        own
    };
    let mut own_cloud = cluster("own");
    own_cloud.simulated = Some(Simulated::default());
    let clusters = [elsewhere("a", "r1"), elsewhere("b", "r2"), own_cloud];
    let stage = Stage::new(FleetLimits::default(), &clusters);
    assert!(stage.view_counts.is_empty(), "{:?}", stage.view_counts);
    let stage = Stage::new(FleetLimits::default(), &[elsewhere("a", "r1"), elsewhere("b", "r1")]);
    assert_eq!(stage.view_counts.len(), 2, "they share a region");
}

#[test]
fn unavailable_offering_is_announced_in_the_same_account_and_region() {
    let mut elsewhere = cluster("north");
    elsewhere.region = "us-east-1".into();
    // The same region of another account.
    let mut abroad = cluster("abroad");
    abroad.role_arn = Some("arn:aws:iam::2:role/outrigger".into());
    let all = [cluster("east"), cluster("west"), elsewhere, abroad, cluster("late")];
    let mut stage = Stage::new(FleetLimits::default(), &all);
    for name in ["east", "west", "north", "abroad"] {
        stage.report_all(name, &[]);
    }
    let offering = OfferingKey {
        instance_type: "m5.large".into(),
        zone: "eu-central-1a".into(),
        capacity_type: CapacityType::Spot,
        reservation: None,
    };
    let until = stage.now + SignedDuration::from_secs(180);
    let what = vec![offering.into(), UnavailableKey::Way(CapacityType::Spot)];
    stage.command("east", Command::MarkUnavailable { what: what.clone(), until });
    let expect = ["late", "west"].map(|name| (name.into(), what.clone(), until));
    assert_eq!(std::mem::take(&mut stage.unavailable), expect);
    // A cluster that starts before the end is notified; one that starts later is not.
    stage.report_all("late", &[]);
    assert_eq!(std::mem::take(&mut stage.unavailable), [expect[0].clone()]);
    stage.advance(180);
    stage.fleet.on_engine_start(&"late".into(), stage.now);
    stage.report_all("late", &[]);
    assert_eq!(stage.unavailable, []);
}
