//! Tests of the EC2 errors that launches receive over HTTP.

use std::sync::Mutex;

use metrics_exporter_prometheus::PrometheusBuilder;

use super::canned::{FakeAws, REGION, RecordedRequest, Reply};
use crate::ec2::create_fleet::{
    AllocationStrategy, FleetRequest, LaunchTemplateConfig, Override, TargetCapacityType,
};
use crate::ec2::errors::ErrorClass;
use crate::ec2::launch_template::{TemplateTarget, Variation, build_template};
use crate::ec2::subnet_capacity::ReservedAddresses;
use crate::model::instance::{CapacityType, OfferingKey};
use crate::model::labels::Labels;
use crate::model::node_class::NodeClass;
use crate::model::node_class::resolved::ResolvedNodeClass;
use crate::outbound::fence;
use crate::provider::RefusalKind;
use crate::providers::aws::create_fleet::{FleetLaunch, launch_instances};
use crate::providers::aws::error::AwsError;
use crate::providers::aws::launch_templates::Templates;

const ZONES: [&str; 2] = ["us-west-2a", "us-west-2b"];

/// One type in two zones.
pub(super) fn request() -> FleetRequest {
    let site = TemplateTarget { cluster: "prod", region: REGION, ipv6: false };
    let (class, resolved) = (NodeClass::default(), ResolvedNodeClass::default());
    FleetRequest {
        token: "claim".to_owned(),
        count: 1,
        target: TargetCapacityType::OnDemand,
        strategy: Some(AllocationStrategy::Prioritized),
        configs: vec![LaunchTemplateConfig {
            template: build_template(&class, &resolved, site, Variation::default()),
            overrides: ZONES
                .map(|zone| Override {
                    offering: OfferingKey {
                        instance_type: "m5.large".into(),
                        zone: zone.into(),
                        capacity_type: CapacityType::OnDemand,
                        reservation: None,
                    },
                    subnet: format!("subnet-{zone}"),
                    image: "ami-1".to_owned(),
                    priority: 0.0,
                })
                .into(),
        }],
        context: None,
        tags: Labels::new(),
        refused: Vec::new(),
        taken: ReservedAddresses::default(),
    }
}

fn of_zone(zone: &str) -> String {
    format!(
        "<launchTemplateAndOverrides><overrides><instanceType>m5.large</instanceType>\
         <availabilityZone>{zone}</availabilityZone></overrides></launchTemplateAndOverrides>"
    )
}

/// An instance in the second zone.
fn launch_reply(errors: &str) -> Reply {
    let zone = of_zone(ZONES[1]);
    Reply::Xml(format!(
        "<fleetInstanceSet><item><instanceIds><item>i-1</item></instanceIds><instanceType>m5.large\
         </instanceType>{zone}</item></fleetInstanceSet><errorSet>{errors}</errorSet>"
    ))
}

/// Throttling is also counted if the SDK retries internally.
#[test]
fn throttled_aws_calls_are_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let aws = FakeAws::new(|_| Reply::Error("RequestLimitExceeded", "too much"));
            let account = aws.account(REGION);
            let call = account.ec2.describe_subnets().send().await;
            call.expect_err("an error");
            let other = FakeAws::new(|_| Reply::Error("UnauthorizedOperation", "no"));
            let account = other.account(REGION);
            let call = account.ec2.describe_images().send().await;
            call.expect_err("an error");
        });
    });
    let text = recorder.handle().render();
    let throttled = text.lines().filter(|line| line.starts_with("outrigger_ec2_throttled_total{"));
    let throttled: Vec<&str> = throttled.collect();
    let expect = format!("{{region=\"{REGION}\",api=\"DescribeSubnets\"}}");
    assert_eq!(throttled.len(), 1, "{text}");
    assert!(throttled[0].contains(&expect), "{text}");
}

/// The error for an unknown template ID is unrelated to our templates, which have names.
#[tokio::test]
async fn only_an_unknown_template_name_causes_a_new_template() {
    const NAME: &str = "InvalidLaunchTemplateName.NotFoundException";
    const ID: &str = "InvalidLaunchTemplateId.NotFound";
    // Error codes of the launches in reverse order, the expected number of requests, and the
    // result.
    let cases: [(&'static [&'static str], usize, Option<ErrorClass>); 5] = [
        (&[], 1, None),
        (&[NAME], 2, None),
        (&[NAME, NAME], 2, Some(ErrorClass::TemplateGone)),
        (&[ID], 1, Some(ErrorClass::NotFound)),
        (&[ID, NAME], 2, Some(ErrorClass::NotFound)),
    ];
    for (refused, rounds, sort) in cases {
        let left = Mutex::new(refused.to_vec());
        let aws = FakeAws::new(move |request| match request.operation.as_str() {
            "CreateFleet" => match left.lock().expect("no panic").pop() {
                Some(code) => Reply::Error(code, "gone"),
                None => launch_reply(""),
            },
            _ => Reply::Xml(String::new()),
        });
        let outcome = launched(&aws).await;
        let failed = outcome.err().map(|fault| fault.to_failure("ec2").sort);
        assert_eq!(failed, sort, "{refused:?}");
        let (fleets, others): (Vec<RecordedRequest>, Vec<RecordedRequest>) =
            aws.take_requests().into_iter().partition(|request| request.operation == "CreateFleet");
        assert_eq!((fleets.len(), others.len()), (rounds, rounds), "{refused:?}");
        // A retried token requires an identical request.
        assert!(fleets.iter().all(|fleet| fleet.body == fleets[0].body));
    }
}

async fn launched(aws: &FakeAws) -> Result<FleetLaunch, AwsError> {
    let (account, templates, request) = (aws.account(REGION), Templates::default(), request());
    fence::run_unfenced(launch_instances(&account, &templates, &request)).await
}

/// Errors are assigned to zones by the zone next to the subnet, also if an instance was launched.
#[tokio::test]
async fn fleet_errors_are_assigned_to_their_zone() {
    let aws = FakeAws::new(|request| match request.operation.as_str() {
        "CreateFleet" => launch_reply(&format!(
            "<item><errorCode>InsufficientInstanceCapacity</errorCode>{}</item>",
            of_zone(ZONES[0])
        )),
        _ => Reply::Xml(String::new()),
    });
    let outcome = launched(&aws).await;
    let FleetLaunch { launched, errors } = outcome.unwrap_or_else(|fault| panic!("{fault}"));
    let (instance, _) = launched.into_iter().next().expect("an instance");
    assert_eq!(instance.offering.zone.as_str(), ZONES[1]);
    let [refused] = &errors.refusals[..] else {
        panic!("{:?}", errors.refusals);
    };
    assert_eq!(refused.offering.zone.as_str(), ZONES[0]);
    assert_eq!(refused.kind, RefusalKind::InsufficientCapacity);
    let fleet = aws.take_requests().remove(1);
    for (number, zone) in ZONES.into_iter().enumerate() {
        let at = format!("LaunchTemplateConfigs.1.Overrides.{}", number + 1);
        for parameter in
            [format!("{at}.AvailabilityZone={zone}"), format!("{at}.SubnetId=subnet-{zone}")]
        {
            assert!(fleet.contains(&parameter), "{parameter}: {fleet:?}");
        }
    }
}
