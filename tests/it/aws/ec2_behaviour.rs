//! Tests that the AWS of the tests refuses, delays and loses what EC2 does. Tests of the provider
//! rely on it.

use aws_sdk_ec2::error::ProvideErrorMetadata;
use aws_sdk_ec2::operation::create_fleet::CreateFleetOutput;
use aws_sdk_ec2::operation::create_fleet::builders::CreateFleetFluentBuilder;
use aws_sdk_ec2::types::{DefaultTargetCapacityType, TargetCapacitySpecificationRequest};
use serde_json::{Value, json};

use super::proxy::{Bench, Pairs, outcome};

const OFFERS: [(&str, f64); 2] = [("c5.large", 0.1), ("m5.large", 0.2)];

/// Returns a launch request for this many instances.
fn fleet_of(bench: &Bench, token: &str, count: i32) -> CreateFleetFluentBuilder {
    let target = TargetCapacitySpecificationRequest::builder()
        .total_target_capacity(count)
        .default_target_capacity_type(DefaultTargetCapacityType::OnDemand);
    bench.fleet(token, &OFFERS).target_capacity_specification(target.build())
}

/// Returns the number of instances in a response by type, and the types and codes of its errors.
fn counts(answer: &CreateFleetOutput) -> (Vec<(String, usize)>, Pairs) {
    let (instances, errors) = outcome(answer);
    let count = |ids: &str| ids.split(',').count();
    (instances.into_iter().map(|(ids, kind)| (kind, count(&ids))).collect(), errors)
}

fn pair(kind: &str, code: &str) -> (String, String) {
    (kind.to_owned(), code.to_owned())
}

#[tokio::test]
async fn fleet_of_many_instances_is_filled_as_far_as_capacity_and_addresses_reach() {
    let test = "aws::ec2_behaviour::\
                fleet_of_many_instances_is_filled_as_far_as_capacity_and_addresses_reach";
    let Some(bench) = Bench::start(test).await else {
        return;
    };
    let all = fleet_of(&bench, "all", 3).send().await.expect("a fleet");
    assert_eq!(counts(&all), (vec![("c5.large".to_owned(), 3)], vec![]));
    bench.aws.ask(&json!({"do": "capacity", "type": "c5.large", "left": 2}));
    let mixed = fleet_of(&bench, "mixed", 3).send().await.expect("a fleet");
    let short = "InsufficientInstanceCapacity";
    let launched = vec![("c5.large".to_owned(), 2), ("m5.large".to_owned(), 1)];
    assert_eq!(counts(&mixed), (launched, vec![pair("c5.large", short)]));
    let subnet = bench.aws.fact("/subnets/us-west-2a");
    bench.aws.ask(&json!({"do": "addresses", "subnet": subnet, "free": 2}));
    let partial = fleet_of(&bench, "partial", 5).send().await.expect("a fleet");
    let (launched, errors) = counts(&partial);
    assert_eq!(launched, [("m5.large".to_owned(), 2)]);
    let full = pair("m5.large", "InsufficientFreeAddressesInSubnet");
    assert_eq!(errors, [pair("c5.large", short), full]);
    // All instances of a response belong to one fleet, also those of different types.
    let fleets = |instance: &Value| instance["tags"]["aws:ec2:fleet-id"] == json!(mixed.fleet_id());
    assert_eq!(bench.aws.instances().iter().filter(|instance| fleets(instance)).count(), 3);
}

#[tokio::test]
async fn launches_beyond_the_request_limit_are_throttled_and_have_no_effect() {
    let test = "aws::ec2_behaviour::\
                launches_beyond_the_request_limit_are_throttled_and_have_no_effect";
    let Some(bench) = Bench::start(test).await else {
        return;
    };
    // The bucket is not refilled during the test.
    bench.aws.ask(&json!({"do": "limits", "limits": {"launches": [5, 0], "instances": [100, 0]}}));
    let mut codes = Vec::new();
    for number in 0..7 {
        let sent = fleet_of(&bench, &format!("token {number}"), 1).send().await;
        codes.push(sent.err().and_then(|error| error.code().map(str::to_owned)));
    }
    let throttled = || Some("RequestLimitExceeded".to_owned());
    assert_eq!(codes, [None, None, None, None, None, throttled(), throttled()]);
    assert_eq!(bench.aws.instances().len(), 5);
    // The bucket of instances is one for all calls. Setting limits refills it.
    bench.aws.ask(&json!({"do": "limits", "limits": {"launches": [9, 0], "instances": [100, 0]}}));
    let count = |answer: CreateFleetOutput| counts(&answer).0[0].1;
    let first = fleet_of(&bench, "sixty", 60).send().await.expect("a fleet");
    let second = fleet_of(&bench, "sixty more", 60).send().await.expect_err("too many instances");
    assert_eq!((count(first), second.code()), (60, Some("RequestLimitExceeded")));
    let third = fleet_of(&bench, "forty", 40).send().await.expect("a fleet");
    assert_eq!((count(third), bench.aws.instances().len()), (40, 105));
}

#[tokio::test]
async fn used_token_returns_its_instances_or_none_or_an_error() {
    let test = "aws::ec2_behaviour::used_token_returns_its_instances_or_none_or_an_error";
    let Some(bench) = Bench::start(test).await else {
        return;
    };
    let first = fleet_of(&bench, "token", 2).send().await.expect("a fleet");
    let again = fleet_of(&bench, "token", 2).send().await.expect("a fleet");
    assert_eq!(outcome(&first), outcome(&again));
    bench.aws.ask(&json!({"do": "settings", "replay": "without"}));
    let again = fleet_of(&bench, "token", 2).send().await.expect("a fleet");
    assert_eq!((counts(&again), again.fleet_id()), ((vec![], vec![]), first.fleet_id()));
    bench.aws.ask(&json!({"do": "settings", "replay": "mismatch"}));
    let again = fleet_of(&bench, "token", 2).send().await.expect_err("the token is used");
    assert_eq!(again.code(), Some("IdempotentParameterMismatch"));
    assert_eq!(bench.aws.instances().len(), 2);
}

#[tokio::test]
async fn doomed_instance_ends_by_itself_and_its_state_has_a_reason() {
    let test = "aws::ec2_behaviour::doomed_instance_ends_by_itself_and_its_state_has_a_reason";
    let Some(bench) = Bench::start(test).await else {
        return;
    };
    let code = "Client.InvalidKMSKey.InvalidState";
    let doom = json!({"do": "doom", "type": "c5.large", "code": code, "after": 0, "times": 1});
    bench.aws.ask(&doom);
    bench.aws.ask(&json!({"do": "settings", "hide": 0, "boot": 3600}));
    fleet_of(&bench, "one", 2).send().await.expect("a fleet");
    let listed = bench.ec2.describe_instances().send().await.expect("a listing");
    let instances = listed.reservations().iter().flat_map(|launch| launch.instances());
    let mut states: Vec<_> = instances
        .map(|instance| {
            let state = instance.state().and_then(|state| state.name());
            let reason = instance.state_reason().and_then(|reason| reason.code());
            (state.map(|name| name.as_str()), reason.unwrap_or_default())
        })
        .collect();
    states.sort_unstable();
    assert_eq!(states, [(Some("pending"), ""), (Some("terminated"), code)]);
}

#[tokio::test]
async fn each_call_sees_its_own_share_of_the_latest_instances() {
    let test = "aws::ec2_behaviour::each_call_sees_its_own_share_of_the_latest_instances";
    let Some(bench) = Bench::start(test).await else {
        return;
    };
    let listed = async || {
        let listed = bench.ec2.describe_instances().send().await.expect("a listing");
        listed.reservations().iter().map(|launch| launch.instances().len()).sum::<usize>()
    };
    let launched = fleet_of(&bench, "one", 50).send().await.expect("a fleet");
    assert_eq!(listed().await, 0);
    // Half of the time is over, and the rest of it does not end during the test.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    bench.aws.ask(&json!({"do": "settings", "hide": 5.0}));
    let partial = listed().await;
    assert!((1..50).contains(&partial), "{partial} of 50");
    bench.aws.ask(&json!({"do": "settings", "hide": 0}));
    assert_eq!(listed().await, 50);
    // An instance that a call does not see is unknown to it.
    bench.aws.ask(&json!({"do": "settings", "hide": 3600}));
    let (ids, _) = outcome(&launched).0.remove(0);
    let ids = ids.split(',').map(str::to_owned);
    let ended = bench.ec2.terminate_instances().set_instance_ids(Some(ids.collect())).send().await;
    let error = ended.expect_err("they are hidden");
    assert_eq!(error.code(), Some("InvalidInstanceID.NotFound"));
}

#[tokio::test]
async fn request_with_too_many_overrides_is_refused() {
    let test = "aws::ec2_behaviour::request_with_too_many_overrides_is_refused";
    let Some(bench) = Bench::start(test).await else {
        return;
    };
    let offers = vec![("c5.large", 0.1); 600];
    let refused = bench.fleet("large", &offers).send().await.expect_err("it is too large");
    assert_eq!(refused.code(), Some("InvalidInput"));
    assert_eq!(bench.aws.instances().len(), 0);
}
