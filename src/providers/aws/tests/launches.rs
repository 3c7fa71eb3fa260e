//! The exact CreateFleet and launch template requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_smithy_types::retry::RetryConfig;

use super::canned::{FakeAws, REGION, RecordedRequest, Reply};
use crate::ec2::create_fleet::{
    AllocationStrategy, FleetRequest, LaunchTemplateConfig, Override, TargetCapacityType,
};
use crate::ec2::launch_template::{RenderedUserData, TemplateTarget, Variation, build_template};
use crate::ec2::launch_template_cache::KEPT;
use crate::ec2::subnet_capacity::ReservedAddresses;
use crate::host::clock;
use crate::model::instance::{CapacityType, OfferingKey};
use crate::model::labels::Labels;
use crate::model::node_class::NodeClass;
use crate::model::node_class::image::AmiFamily;
use crate::model::node_class::resolved::PlacementGroupStrategy as Grouping;
use crate::model::node_class::resolved::{PlacementGroup, ResolvedNodeClass, SecurityGroup};
use crate::model::reservation::{Reservation, ReservationKind};
use crate::outbound::fence;
use crate::providers::aws::create_fleet::launch_instances;
use crate::providers::aws::launch_templates::Templates;

fn tags() -> Labels {
    let all = [("Name", "mine"), ("outrigger.dev/claim", "abc"), ("team", "web")];
    all.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// The inputs of a launch template.
struct TemplateInputs {
    class: NodeClass,
    resolved: ResolvedNodeClass,
    variation: Variation<'static>,
    target: TargetCapacityType,
}

fn parts() -> TemplateInputs {
    let group = SecurityGroup { id: "sg-1".into(), name: String::new() };
    let mut tags = tags();
    tags.remove("outrigger.dev/claim");
    TemplateInputs {
        class: NodeClass { family: AmiFamily::Al2023, ..NodeClass::default() },
        resolved: ResolvedNodeClass {
            security_groups: vec![group],
            profile: Some("nodes".into()),
            ..ResolvedNodeClass::default()
        },
        variation: Variation {
            image: "ami-1",
            user_data: RenderedUserData::new(b"hello".to_vec()),
            tags,
            ..Variation::default()
        },
        target: TargetCapacityType::OnDemand,
    }
}

fn request(parts: &TemplateInputs, reservation: Option<&Reservation>) -> FleetRequest {
    let site = TemplateTarget { cluster: "prod", region: "us-west-2", ipv6: false };
    let variation = Variation { reservation, ..parts.variation.clone() };
    let offering = OfferingKey {
        instance_type: "m5.large".into(),
        zone: "us-west-2a".into(),
        capacity_type: parts.variation.bought.unwrap_or(CapacityType::OnDemand),
        reservation: None,
    };
    let alternative =
        Override { offering, subnet: "subnet-1".into(), image: "ami-1".into(), priority: 0.0 };
    FleetRequest {
        token: "abc".into(),
        count: 1,
        target: parts.target,
        strategy: Some(AllocationStrategy::Prioritized),
        configs: vec![LaunchTemplateConfig {
            template: build_template(&parts.class, &parts.resolved, site, variation),
            overrides: vec![alternative],
        }],
        context: None,
        tags: tags(),
        refused: Vec::new(),
        taken: ReservedAddresses::default(),
    }
}

fn launch_reply(request: &RecordedRequest) -> Reply {
    let inner = match request.operation.as_str() {
        "CreateFleet" => {
            "<fleetInstanceSet><item><instanceIds><item>i-1</item></instanceIds>\
             <instanceType>m5.large</instanceType></item></fleetInstanceSet>"
        }
        _ => "",
    };
    Reply::Xml(inner.to_owned())
}

/// Parameters with this prefix, in order, without the prefix.
fn with_prefix<'a>(request: &'a RecordedRequest, name: &str) -> Vec<&'a str> {
    let lines = request.body.lines();
    lines.filter_map(|line| line.strip_prefix(name)).collect()
}

/// How often templates are missing, and whether an instance is launched.
#[tokio::test]
async fn deleted_launch_template_is_recreated_once() {
    const ROUND: [&str; 2] = ["CreateLaunchTemplate", "CreateFleet"];
    for (missing, launched) in [(0, true), (1, true), (2, false)] {
        let left = AtomicUsize::new(missing);
        let aws = FakeAws::new(move |request| {
            let is_fleet = request.operation == "CreateFleet";
            let order = Ordering::Relaxed;
            match is_fleet && left.fetch_update(order, order, |count| count.checked_sub(1)).is_ok()
            {
                true => Reply::Error("InvalidLaunchTemplateName.NotFoundException", "gone"),
                false => launch_reply(request),
            }
        });
        let (account, templates) = (aws.account(REGION), Templates::default());
        let request = request(&parts(), None);
        let outcome = fence::run_unfenced(launch_instances(&account, &templates, &request)).await;
        let instance = outcome.ok().and_then(|mut outcome| outcome.launched.pop());
        assert_eq!(instance.is_some(), launched, "{missing}");
        let requests = aws.take_requests();
        let names: Vec<&str> = requests.iter().map(|request| request.operation.as_str()).collect();
        assert_eq!(names, ROUND.repeat(1 + missing.min(1)), "{missing}");
        // The request has the same name and the same token.
        let fleets = requests.iter().filter(|request| request.operation == "CreateFleet");
        let name = request.configs[0].template.name();
        for fleet in fleets {
            let named = "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName=";
            assert_eq!(with_prefix(fleet, named), [name.as_str()]);
            assert!(fleet.contains("ClientToken=abc"));
        }
        // The template is now cached as existing.
        drop(fence::run_unfenced(launch_instances(&account, &templates, &request)).await);
        assert_eq!(aws.operations(), "CreateFleet", "{missing}");
    }
}

/// EC2 reports the missing template as the error of an alternative: the call succeeds. Without an
/// instance it is repeated with another token. With an instance, the next launch creates the
/// template.
#[tokio::test]
async fn launch_template_that_is_missing_for_an_alternative_is_recreated() {
    const GONE: &str = "<errorSet><item>\
         <errorCode>InvalidLaunchTemplateName.NotFoundException</errorCode>\
         <errorMessage>gone</errorMessage><launchTemplateAndOverrides><overrides>\
         <instanceType>m5.large</instanceType></overrides></launchTemplateAndOverrides>\
         </item></errorSet>";
    for with_instance in [false, true] {
        let left = AtomicUsize::new(1);
        let aws = FakeAws::new(move |request| {
            let is_fleet = request.operation == "CreateFleet";
            let order = Ordering::Relaxed;
            let is_gone =
                is_fleet && left.fetch_update(order, order, |count| count.checked_sub(1)).is_ok();
            match (is_gone, launch_reply(request)) {
                (true, Reply::Xml(inner)) if with_instance => Reply::Xml(inner + GONE),
                (true, _) => Reply::Xml(GONE.to_owned()),
                (false, reply) => reply,
            }
        });
        let (account, templates) = (aws.account(REGION), Templates::default());
        let request = request(&parts(), None);
        let launch = || fence::run_unfenced(launch_instances(&account, &templates, &request));
        let outcome = launch().await.expect("a response");
        assert_eq!(outcome.launched.len(), 1);
        let requests = aws.take_requests();
        let tokens = requests.iter().filter(|request| request.operation == "CreateFleet");
        let tokens: Vec<&str> = tokens.flat_map(|it| with_prefix(it, "ClientToken=")).collect();
        let expected: &[&str] = if with_instance { &["abc"] } else { &["abc", "abcr"] };
        assert_eq!(tokens, expected);
        drop(launch().await);
        let operations =
            if with_instance { "CreateLaunchTemplate CreateFleet" } else { "CreateFleet" };
        assert_eq!(aws.operations(), operations);
    }
}

#[tokio::test]
async fn request_that_is_too_large_is_repeated_with_fewer_alternatives() {
    let sent = |request: &RecordedRequest| {
        let lines = request.body.lines();
        lines.filter(|line| line.contains(".Overrides.") && line.contains(".SubnetId=")).count()
    };
    for (permitted, expected) in [(40, vec![40]), (12, vec![40, 20, 10]), (2, vec![40, 20, 10, 5])]
    {
        let aws = FakeAws::new(move |request| match request.operation.as_str() {
            "CreateFleet" if sent(request) > permitted => {
                Reply::Error("InvalidInput", "The payload for the body of the request is too large")
            }
            _ => launch_reply(request),
        });
        let (account, templates) = (aws.account(REGION), Templates::default());
        let mut request = request(&parts(), None);
        let first = request.configs[0].overrides[0].clone();
        request.configs[0].overrides = (0..40_u32)
            .map(|number| Override {
                subnet: format!("subnet-{number}"),
                priority: f64::from(number),
                ..first.clone()
            })
            .collect();
        let outcome = fence::run_unfenced(launch_instances(&account, &templates, &request)).await;
        assert_eq!(outcome.is_ok(), permitted > 2);
        let requests = aws.take_requests();
        let fleets = requests.iter().filter(|request| request.operation == "CreateFleet");
        let counts: Vec<usize> = fleets.clone().map(sent).collect();
        assert_eq!(counts, expected, "{permitted}");
        let tokens = fleets.flat_map(|it| with_prefix(it, "ClientToken="));
        assert_eq!(tokens.collect::<BTreeSet<_>>().len(), expected.len());
        // No request uses the template any more.
        let later = clock::now() + KEPT;
        assert_eq!(templates.idle_templates(later).await, [request.configs[0].template.name()]);
    }
}

/// If the response of a launch is lost, an instance may exist. A retry that is rejected for
/// throttling must not hide that.
#[tokio::test(start_paused = true)]
async fn create_fleet_is_not_retried_by_the_sdk() {
    let lost = AtomicUsize::new(0);
    let aws = FakeAws::new(move |request| {
        let is_fleet = request.operation == "CreateFleet";
        match is_fleet.then(|| lost.fetch_add(1, Ordering::Relaxed)) {
            None => launch_reply(request),
            Some(0) => Reply::NoResponse(Duration::ZERO),
            Some(_) => Reply::Error("RequestLimitExceeded", "busy"),
        }
    });
    let account = aws.account_with_retries(REGION, RetryConfig::standard().with_max_attempts(3));
    let request = request(&parts(), None);
    let templates = Templates::default();
    let outcome = launch_instances(&account, &templates, &request);
    let outcome = fence::run_unfenced(outcome).await;
    let fault = outcome.err().expect("no response");
    assert_eq!(fault.code, None, "{fault}");
    assert_eq!(aws.operations(), "CreateLaunchTemplate CreateFleet");
}

/// The tags by resource type.
fn tagged(request: &RecordedRequest, specifications: &str) -> BTreeMap<String, Labels> {
    let mut all = BTreeMap::new();
    for number in 1..9 {
        let at = format!("{specifications}.{number}.");
        let Some(kind) = with_prefix(request, &format!("{at}ResourceType=")).first().copied()
        else {
            break;
        };
        let mut labels = Labels::new();
        for tag in 1..9 {
            let keys = with_prefix(request, &format!("{at}Tag.{tag}.Key="));
            let values = with_prefix(request, &format!("{at}Tag.{tag}.Value="));
            let tag = keys.first().zip(values.first());
            labels.extend(tag.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        }
        all.insert(kind.to_owned(), labels);
    }
    all
}

#[tokio::test]
async fn all_resources_of_a_launch_are_tagged() {
    for spot in [false, true] {
        let aws = FakeAws::new(launch_reply);
        let mut launch_parts = parts();
        launch_parts.variation.bought = spot.then_some(CapacityType::Spot);
        let request = request(&launch_parts, None);
        let account = aws.account(REGION);
        let templates = Templates::default();
        let done = launch_instances(&account, &templates, &request);
        let done = fence::run_unfenced(done).await;
        assert!(done.is_ok_and(|launch| launch.launched.len() == 1));
        let requests = aws.take_requests();
        let [template, fleet] = requests.as_slice() else {
            panic!("{requests:?}");
        };
        // A name set by the user is kept.
        let all = ["fleet", "instance", "volume"].map(|kind| (kind.to_owned(), tags()));
        assert_eq!(tagged(fleet, "TagSpecification"), all.into());
        let shared = launch_parts.variation.tags.clone();
        assert_eq!(shared["Name"], "mine");
        let itself = [("launch-template".to_owned(), shared.clone())];
        assert_eq!(tagged(template, "TagSpecification"), itself.into());
        let mut kinds = vec!["network-interface"];
        kinds.extend(spot.then_some("spot-instances-request"));
        let kinds = kinds.into_iter().map(|kind| (kind.to_owned(), shared.clone()));
        let data = tagged(template, "LaunchTemplateData.TagSpecification");
        assert_eq!(data, kinds.collect());
    }
}

/// A change of a template, and the additional EC2 parameters that result from it.
type Row = (fn(&mut TemplateInputs), Option<fn() -> Reservation>, &'static [&'static str]);

/// Parameters of a plain template, without tags, disks and user data.
const PLAIN: [&str; 14] = [
    "CapacityReservationSpecification.CapacityReservationPreference=none",
    "EnclaveOptions.Enabled=false",
    "IamInstanceProfile.Name=nodes",
    "ImageId=ami-1",
    "MetadataOptions.HttpEndpoint=enabled",
    "MetadataOptions.HttpProtocolIpv6=disabled",
    "MetadataOptions.HttpPutResponseHopLimit=1",
    "MetadataOptions.HttpTokens=required",
    "MetadataOptions.InstanceMetadataTags=disabled",
    "Monitoring.Enabled=false",
    "NetworkInterface.1.DeviceIndex=0",
    "NetworkInterface.1.SecurityGroupId.1=sg-1",
    "Placement.Tenancy=default",
    "UserData=aGVsbG8=",
];

fn reserved() -> Reservation {
    Reservation::new("cr-1", 1)
}

const ROWS: [Row; 8] = [
    (|_| {}, None, &[]),
    (|it| it.class.detailed_monitoring = true, None, &["Monitoring.Enabled=true"]),
    (|it| it.variation.enclave = true, None, &["EnclaveOptions.Enabled=true"]),
    (
        |it| {
            it.variation.dedicated = true;
            it.variation.partition = Some(2);
            it.resolved.placement_group =
                Some(PlacementGroup { id: "pg-1".into(), strategy: Grouping::Partition(3) });
        },
        None,
        &["Placement.GroupId=pg-1", "Placement.PartitionNumber=2", "Placement.Tenancy=dedicated"],
    ),
    (
        |it| it.class.nested_virtualization = Some(true),
        None,
        &["CpuOptions.NestedVirtualization=enabled"],
    ),
    (
        |_| {},
        Some(reserved),
        &[
            "CapacityReservationSpecification.CapacityReservationPreference=\
             capacity-reservations-only",
            "CapacityReservationSpecification.CapacityReservationTarget.\
             CapacityReservationId=cr-1",
        ],
    ),
    (
        |it| it.target = TargetCapacityType::CapacityBlock,
        Some(|| Reservation { kind: ReservationKind::CapacityBlock, ..reserved() }),
        &[
            "CapacityReservationSpecification.CapacityReservationPreference=\
             capacity-reservations-only",
            "CapacityReservationSpecification.CapacityReservationTarget.\
             CapacityReservationId=cr-1",
            "InstanceMarketOptions.MarketType=capacity-block",
        ],
    ),
    (
        |it| it.target = TargetCapacityType::Interruptible,
        Some(|| Reservation { interruptible: true, ..reserved() }),
        &[
            "CapacityReservationSpecification.CapacityReservationPreference=\
             capacity-reservations-only",
            "CapacityReservationSpecification.CapacityReservationTarget.\
             CapacityReservationId=cr-1",
            "InstanceMarketOptions.MarketType=interruptible-capacity-reservation",
        ],
    ),
];

#[tokio::test]
async fn launch_template_request_has_the_exact_parameters() {
    for (number, (change, reservation, expect)) in ROWS.into_iter().enumerate() {
        let mut launch_parts = parts();
        change(&mut launch_parts);
        launch_parts.class.family = AmiFamily::Custom;
        let reservation = reservation.map(|reservation| reservation());
        let request = request(&launch_parts, reservation.as_ref());
        let aws = FakeAws::new(launch_reply);
        let account = aws.account(REGION);
        let templates = Templates::default();
        let done = launch_instances(&account, &templates, &request);
        let done = fence::run_unfenced(done).await;
        assert!(done.is_ok());
        let requests = aws.take_requests();
        let sent = with_prefix(&requests[0], "LaunchTemplateData.");
        let sent = sent.into_iter().filter(|line| !line.starts_with("TagSpecification"));
        let mut sent: Vec<&str> = sent.collect();
        sent.sort_unstable();
        let changed: Vec<_> = expect.iter().map(|line| line.split('=').next()).collect();
        let plain = PLAIN.iter().filter(|line| !changed.contains(&line.split('=').next()));
        let mut expect: Vec<&str> = plain.chain(expect).copied().collect();
        expect.sort_unstable();
        assert_eq!(sent, expect, "case {number}");
    }
}
