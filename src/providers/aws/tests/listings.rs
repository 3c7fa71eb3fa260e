//! EC2 listings: pagination, and the fields read from each entry. Source: the cases of spec/aws.md
//! §12.10 and §12.11.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::canned::{FakeAws, REGION, RecordedRequest, Reply};
use crate::ec2::instance_status::{Scheduled, StatusCheckDetail, StatusRow};
use crate::model::instance::{CapacityType, InstanceState};
use crate::model::node_class::network::MatchCriteria;
use crate::model::node_class::resolved::{Cause, PlacementGroupStrategy};
use crate::model::reservation::ReservationKind;
use crate::providers::aws::images::to_resolve_error;
use crate::providers::aws::instances::Lister;
use crate::providers::aws::{instance_status, network};

/// XML of named elements in order. Empty elements are omitted.
fn xml(elements: &[(&str, &str)]) -> String {
    let present = elements.iter().filter(|(_, value)| !value.is_empty());
    present.map(|(name, value)| format!("<{name}>{value}</{name}>")).collect()
}

fn items(name: &str, all: &[String]) -> String {
    let all: String = all.iter().map(|item| format!("<item>{item}</item>")).collect();
    format!("<{name}>{all}</{name}>")
}

fn tags(pairs: &[(&str, &str)]) -> String {
    items(
        "tagSet",
        &pairs
            .iter()
            .map(|(key, value)| xml(&[("key", key), ("value", value)]))
            .collect::<Vec<_>>(),
    )
}

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

/// Pages, some of them empty, with each entry once. The first page's token requests the second
/// page.
fn paged(request: &RecordedRequest, name: &str, entries: [&[String]; 3]) -> Reply {
    let page = match request.body.lines().find(|line| line.starts_with("NextToken=")) {
        None => 0,
        Some("NextToken=one") => 1,
        Some(_) => 2,
    };
    let next = ["<nextToken>one</nextToken>", "<nextToken>two</nextToken>", ""][page];
    Reply::Xml(items(name, entries[page]) + next)
}

fn subnet(id: &str, zone: &str, free: &str) -> String {
    let fields = [
        ("subnetId", id),
        ("availabilityZone", zone),
        ("availabilityZoneId", "usw2-az1"),
        ("availableIpAddressCount", free),
    ];
    xml(&fields) + &tags(&[("team", "web")])
}

fn security_group(id: &str) -> String {
    xml(&[("groupId", id), ("groupName", "nodes")])
}

#[tokio::test]
async fn pages_are_joined_and_empty_pages_do_not_end_a_listing() {
    let aws = FakeAws::new(|request| match request.operation.as_str() {
        "DescribeSubnets" => paged(
            request,
            "subnetSet",
            [
                &[subnet("s-1", "us-west-2a", "7"), subnet("s-2", "", "7")],
                &[],
                &[subnet("s-3", "us-west-2b", "-1")],
            ],
        ),
        _ => paged(
            request,
            "securityGroupInfo",
            [&[], &[security_group("sg-1")], &[security_group("sg-2")]],
        ),
    });
    let account = aws.account(REGION);
    let all = network::list_subnets(&account).await.expect("subnets");
    let texts: Vec<String> = all
        .iter()
        .map(|(subnet, _)| {
            format!("{} {} {} {}", subnet.id, subnet.zone, subnet.zone_id, subnet.free)
        })
        .collect();
    // A subnet without a zone is ignored.
    let expect = ["s-1 us-west-2a usw2-az1 7", "s-3 us-west-2b usw2-az1 0"];
    assert_eq!(texts, expect);
    assert_eq!(all[0].1, [("team".to_owned(), "web".to_owned())].into());
    assert_eq!(aws.take_requests().len(), 3);
    let all = network::list_security_groups(&account).await.expect("groups");
    let ids: Vec<&str> = all.iter().map(|(group, _)| group.id.as_str()).collect();
    assert_eq!(ids, ["sg-1", "sg-2"]);
}

/// A listing with a failed page fails, because a partial result must not be used as a complete one.
#[tokio::test]
async fn failed_page_fails_the_whole_listing() {
    let rows = [
        ("UnauthorizedOperation", Cause::Denied, "AllowRegionalReadActions"),
        ("RequestLimitExceeded", Cause::Unavailable, "RequestLimitExceeded"),
    ];
    for (code, cause, text) in rows {
        let aws = FakeAws::new(move |request| match request.contains("NextToken=one") {
            false => paged(request, "subnetSet", [&[], &[], &[]]),
            true => Reply::Error(code, "why"),
        });
        let fault = network::list_subnets(&aws.account(REGION)).await;
        let condition = to_resolve_error(&fault.expect_err("a fault"), "ec2");
        assert_eq!(condition.cause, cause);
        assert!(condition.text.contains(text), "{}", condition.text);
    }
    let aws = FakeAws::new(|_| Reply::NoResponse(Duration::ZERO));
    let fault = network::list_security_groups(&aws.account(REGION)).await;
    let condition = to_resolve_error(&fault.expect_err("a fault"), "ec2");
    assert_eq!(condition.cause, Cause::Unavailable);
}

/// Only available groups are returned, with their strategy. Unknown strategies are omitted.
#[tokio::test]
async fn only_available_placement_groups_are_listed() {
    let rows = [
        ("a", "pg-1", "available", "cluster", "", Some(PlacementGroupStrategy::Cluster)),
        ("b", "pg-2", "available", "spread", "", Some(PlacementGroupStrategy::Spread)),
        ("c", "pg-3", "available", "partition", "7", Some(PlacementGroupStrategy::Partition(7))),
        ("d", "pg-4", "pending", "cluster", "", None),
        ("e", "pg-5", "deleting", "cluster", "", None),
        ("f", "pg-6", "deleted", "cluster", "", None),
        ("g", "pg-7", "available", "precision", "", None),
        ("h", "", "available", "cluster", "", None),
    ];
    let aws = FakeAws::new(move |_| {
        let all = rows.map(|(name, id, state, strategy, count, _)| {
            xml(&[
                ("groupName", name),
                ("groupId", id),
                ("state", state),
                ("strategy", strategy),
                ("partitionCount", count),
            ])
        });
        Reply::Xml(items("placementGroupSet", &all))
    });
    let all = network::list_placement_groups(&aws.account(REGION)).await;
    let all = all.expect("groups");
    let found = all.iter().map(|(name, group)| (name.as_str(), group.strategy));
    let expect = rows.iter();
    let expect = expect.filter_map(|row| Some((row.0, row.5?)));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), expect.collect::<BTreeMap<_, _>>());
    assert_eq!(all["c"].id, "pg-3");
}

/// State and type of a reservation, and whether it is returned.
#[tokio::test]
async fn only_active_reservations_are_listed() {
    let rows = [
        ("cr-1", "active", "default", true),
        ("cr-2", "active", "", true),
        ("cr-3", "active", "capacity-block", true),
        ("cr-4", "active", "something-new", false),
        ("cr-5", "expired", "default", false),
        ("cr-6", "cancelled", "default", false),
        ("cr-7", "pending", "default", false),
        ("cr-8", "failed", "default", false),
        ("cr-9", "scheduled", "default", false),
        ("cr-10", "payment-pending", "default", false),
        ("cr-11", "payment-failed", "default", false),
        ("cr-12", "assessing", "default", false),
        ("cr-13", "delayed", "default", false),
        ("cr-14", "unsupported", "default", false),
    ];
    let aws = FakeAws::new(move |_| {
        let all = rows.map(|(id, state, kind, _)| {
            let fields = xml(&[
                ("capacityReservationId", id),
                ("ownerId", "012345678901"),
                ("instanceType", "m5.large"),
                ("availabilityZone", "us-west-2a"),
                ("totalInstanceCount", "10"),
                ("availableInstanceCount", "4"),
                ("state", state),
                ("reservationType", kind),
                ("endDate", "2030-01-01T00:00:00.000Z"),
                ("instanceMatchCriteria", "targeted"),
                ("interruptible", if id == "cr-2" { "" } else { "true" }),
            ]);
            fields + &tags(&[("team", "web")])
        });
        Reply::Xml(items("capacityReservationSet", &all))
    });
    let all = network::list_reservations(&aws.account(REGION)).await;
    let all = all.expect("reservations");
    let ids = all.iter().map(|listed| listed.found.reservation.id.as_str());
    let expect = rows.iter().filter(|row| row.3).map(|row| row.0);
    assert!(ids.eq(expect), "{all:?}");
    let block = &all[2].found.reservation;
    assert_eq!(block.kind, ReservationKind::CapacityBlock);
    let listed = &all[0];
    let reservation = &listed.found.reservation;
    assert_eq!(reservation.kind, ReservationKind::Default);
    assert_eq!((reservation.total, reservation.left), (10, 4));
    assert!(reservation.interruptible && reservation.counted.is_some());
    assert!(!all[1].found.reservation.interruptible, "without the field, it is not interruptible");
    assert_eq!(reservation.ends, Some(at("2030-01-01T00:00:00Z")));
    assert_eq!(listed.owner, "012345678901");
    assert_eq!(listed.criteria, Some(MatchCriteria::Targeted));
    assert_eq!(listed.found.zone.as_str(), "us-west-2a");
    let request = aws.take_requests().remove(0);
    assert!(request.contains("Filter.1.Name=state") && request.contains("Filter.1.Value.1=active"));
}

/// A failed check of reachability, since this time.
fn failed_check(since: &str) -> String {
    let detail = xml(&[("name", "reachability"), ("status", "failed"), ("impairedSince", since)]);
    xml(&[("status", "impaired")]) + &items("details", &[detail])
}

/// Healthy instances are not queried in detail. Unhealthy ones are queried for instance checks,
/// host checks and events.
#[tokio::test]
async fn instance_status_is_read_with_its_details() {
    let aws = FakeAws::new(|request| {
        let instance_status = match () {
            () if request.contains("Filter.1.Name=instance-status.status") => {
                let checks = failed_check("2026-01-01T00:00:00.000Z");
                xml(&[("instanceId", "i-1"), ("instanceStatus", &checks)])
            }
            () if request.contains("Filter.1.Name=system-status.status") => {
                let checks = failed_check("");
                xml(&[("instanceId", "i-2"), ("systemStatus", &checks)])
            }
            () => {
                let event = xml(&[
                    ("code", "instance-stop"),
                    ("description", "[Completed] gone"),
                    ("notBefore", "2026-01-02T00:00:00.000Z"),
                ]);
                xml(&[("instanceId", "i-3")]) + &items("eventsSet", &[event])
            }
        };
        Reply::Xml(items("instanceStatusSet", &[instance_status]))
    });
    let rows = instance_status::unhealthy_instances(&aws.account(REGION)).await.expect("rows");
    let event = Scheduled {
        code: "instance-stop".to_owned(),
        description: "[Completed] gone".to_owned(),
        not_before: Some(at("2026-01-02T00:00:00Z")),
    };
    let expect = [
        ("i-1", vec![Some(at("2026-01-01T00:00:00Z"))], vec![]),
        ("i-2", vec![None], vec![]),
        ("i-3", vec![], vec![event]),
    ]
    .map(|(instance, failed_since, events)| {
        let checks = failed_since.into_iter();
        let checks = checks.map(|since| StatusCheckDetail { failed: true, since });
        StatusRow { instance: instance.into(), checks: checks.collect(), events }
    });
    assert_eq!(rows, expect);
    let requests = aws.take_requests();
    assert_eq!(requests.len(), 3);
    for request in &requests[..2] {
        assert!(request.contains("Filter.1.Value.1=impaired"), "{request:?}");
    }
    let codes = [
        "instance-reboot",
        "system-reboot",
        "system-maintenance",
        "instance-retirement",
        "instance-stop",
    ];
    for (number, code) in codes.iter().enumerate() {
        let value = format!("Filter.1.Value.{}={code}", number + 1);
        assert!(requests[2].contains(&value), "{:?}", requests[2]);
    }
}

fn instances_xml(instances: &[String]) -> String {
    items("reservationSet", &[items("instancesSet", instances)])
}

fn listed(id: &str, state: &str, cluster: &str, more: &str) -> String {
    let fields = xml(&[
        ("instanceId", id),
        ("imageId", "ami-1"),
        ("instanceType", "m5.large"),
        ("subnetId", "subnet-1"),
        ("launchTime", "2026-01-01T00:00:00.000Z"),
        ("instanceState", &xml(&[("name", state)])),
        (
            "placement",
            &xml(&[
                ("availabilityZone", "us-west-2a"),
                ("groupId", "pg-1"),
                ("partitionNumber", "2"),
            ]),
        ),
    ]);
    let group = xml(&[("groupId", "sg-1"), ("groupName", "nodes")]);
    let group = items("groupSet", &[group]);
    fields + &group + more + &tags(&[("outrigger.dev/cluster", cluster)])
}

/// One listing of an installation serves all its clusters, each with its own instances. A cluster
/// that has already received it triggers a new listing.
#[tokio::test]
async fn instance_listing_is_shared_by_all_clusters() {
    let aws = FakeAws::new(|request| {
        let spot = xml(&[("spotInstanceRequestId", "sir-1")]);
        let reserved = xml(&[(
            "capacityReservationSpecification",
            &xml(&[("capacityReservationPreference", "capacity-reservations-only")]),
        )]);
        let reserved = xml(&[("capacityReservationId", "cr-1")]) + &reserved;
        let none = items("reservationSet", &[]);
        let first = [
            listed("i-1", "running", "one", &spot),
            listed("i-2", "pending", "two", ""),
            listed("i-3", "something-new", "one", ""),
        ];
        let second = [listed("i-4", "terminated", "one", &reserved)];
        if request.contains("Filter.1.Value.1=broken") {
            return Reply::Error("Unavailable", "sorry");
        }
        Reply::Xml(match request.contains("NextToken=one") {
            _ if !request.contains("Filter.1.Value.1=here") => none,
            false => instances_xml(&first) + "<nextToken>one</nextToken>",
            true => instances_xml(&second),
        })
    });
    let account = aws.account(REGION);
    let lister = Lister::default();
    let ids = async |installation: &str, cluster: &str| {
        let all = lister.list(&account, installation, &cluster.into()).await;
        let all = all.expect("instances");
        let ids = all.iter().map(|instance| instance.id.to_string());
        ids.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ids("here", "one").await, "i-1 i-4");
    assert_eq!(ids("here", "two").await, "i-2");
    assert_eq!(ids("here", "three").await, "");
    assert_eq!(aws.take_requests().len(), 2, "two pages once");
    assert_eq!(ids("there", "one").await, "", "another installation");
    assert_eq!(aws.take_requests().len(), 1);
    for _ in 0..2 {
        let all = lister.list(&account, "broken", &"one".into()).await;
        assert!(all.expect_err("a fault").has_code(&["Unavailable"]));
        assert_eq!(aws.take_requests().len(), 1, "a failed listing is requested again");
    }
    let all = lister.list(&account, "here", &"one".into()).await;
    let all = all.expect("instances");
    assert_eq!(aws.take_requests().len(), 2, "no result is returned twice");
    let [spot, reserved] = &all[..] else {
        panic!("{all:?}");
    };
    assert_eq!(spot.offering.capacity_type, CapacityType::Spot);
    assert_eq!(spot.state, InstanceState::Running);
    assert_eq!(reserved.offering.capacity_type, CapacityType::Reserved);
    assert_eq!(reserved.state, InstanceState::Terminated);
    let facts = spot.facts.as_deref().expect("facts");
    assert_eq!(facts.image.as_deref(), Some("ami-1"));
    assert_eq!(facts.subnet.as_deref(), Some("subnet-1"));
    assert_eq!(facts.security_groups, ["sg-1".to_owned()].into());
    assert_eq!(facts.placement_group.as_deref(), Some("pg-1"));
    assert_eq!(facts.partition, Some(2));
    assert_eq!(spot.launched, at("2026-01-01T00:00:00Z"));
}
