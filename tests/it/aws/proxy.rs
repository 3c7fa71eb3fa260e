//! Tests the extensions of moto through the SDK. Tests of the provider rely on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::error::ProvideErrorMetadata;
use aws_sdk_ec2::operation::create_fleet::CreateFleetOutput;
use aws_sdk_ec2::operation::create_fleet::builders::CreateFleetFluentBuilder;
use aws_sdk_ec2::types::{
    DefaultTargetCapacityType, FleetLaunchTemplateConfigRequest,
    FleetLaunchTemplateOverridesRequest, FleetLaunchTemplateSpecificationRequest, FleetType,
    InstanceType, LaunchTemplateIamInstanceProfileSpecificationRequest,
    LaunchTemplateInstanceNetworkInterfaceSpecificationRequest, RequestLaunchTemplateData,
    TargetCapacitySpecificationRequest,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Aws;
use super::kubelets::{Sizes, node};
use crate::test_script::{POLL, POLLS};

const TEMPLATE: &str = "outrigger/proxy";
const ZONE: &str = "us-west-2a";
/// A minimal nodeadm document.
const USER_DATA: &str = "apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  cluster: {name: tests}
  kubelet:
    config:
      maxPods: 29
      registerWithTaints: [{key: a, effect: NoSchedule}]
    flags:
    - --node-labels=\"b=c,d=e\"
";

/// One AWS with a launch template, and a client of it.
pub(super) struct Bench {
    pub(super) aws: Arc<Aws>,
    pub(super) ec2: Client,
    config: SdkConfig,
}

impl Bench {
    pub(super) async fn start(test: &str) -> Option<Bench> {
        let aws = Aws::start_or_skip(test, &[])?;
        let config = aws.config().await;
        let bench = Bench { ec2: Client::new(&config), aws: Arc::new(aws), config };
        let created = bench.template("template", TEMPLATE).await;
        created.expect("a launch template");
        Some(bench)
    }

    /// Creates a template, and returns its id or the error code.
    async fn template(&self, token: &str, name: &str) -> Result<String, String> {
        let interface = LaunchTemplateInstanceNetworkInterfaceSpecificationRequest::builder()
            .device_index(0)
            .groups(self.aws.fact("/security_groups/0"));
        let profile = LaunchTemplateIamInstanceProfileSpecificationRequest::builder()
            .name(self.aws.fact("/instance_profile"));
        let data = RequestLaunchTemplateData::builder()
            .image_id(self.aws.image("al2023/x86_64/standard"))
            .user_data(aws_smithy_types::base64::encode(USER_DATA))
            .iam_instance_profile(profile.build())
            .network_interfaces(interface.build());
        let call = self.ec2.create_launch_template();
        let call = call.client_token(token).launch_template_name(name);
        let sent = call.launch_template_data(data.build()).send().await;
        match sent {
            Ok(answer) => {
                let template = answer.launch_template.expect("a template");
                Ok(template.launch_template_id.expect("an id"))
            }
            Err(error) => Err(error.code().unwrap_or("no code").to_owned()),
        }
    }

    /// Returns a spot launch request: the available type with the lowest priority number is
    /// launched.
    pub(super) fn fleet(&self, token: &str, offers: &[(&str, f64)]) -> CreateFleetFluentBuilder {
        let template = FleetLaunchTemplateSpecificationRequest::builder()
            .launch_template_name(TEMPLATE)
            .version("$Latest");
        let subnet = self.aws.fact(&format!("/subnets/{ZONE}"));
        let overrides = offers.iter().map(|(kind, priority)| {
            FleetLaunchTemplateOverridesRequest::builder()
                .instance_type(InstanceType::from(*kind))
                .subnet_id(subnet)
                .priority(*priority)
                .build()
        });
        let config = FleetLaunchTemplateConfigRequest::builder()
            .launch_template_specification(template.build())
            .set_overrides(Some(overrides.collect()));
        let target = TargetCapacitySpecificationRequest::builder()
            .total_target_capacity(1)
            .default_target_capacity_type(DefaultTargetCapacityType::Spot);
        let call = self.ec2.create_fleet().r#type(FleetType::Instant);
        call.client_token(token)
            .launch_template_configs(config.build())
            .target_capacity_specification(target.build())
    }

    /// Returns the number of instances, including hidden ones.
    fn made(&self) -> usize {
        self.aws.instances().len()
    }

    async fn listed(&self) -> usize {
        let answer = self.ec2.describe_instances().send().await;
        let reservations = answer.expect("a listing").reservations.unwrap_or_default();
        reservations.iter().map(|reservation| reservation.instances().len()).sum()
    }

    async fn subnets(&self) -> Result<usize, String> {
        match self.ec2.describe_subnets().send().await {
            Ok(answer) => Ok(answer.subnets().len()),
            Err(error) => Err(error.code().unwrap_or("no answer").to_owned()),
        }
    }
}

pub(super) type Pairs = Vec<(String, String)>;

/// Returns the instances of a response with their types, and the errors with their types.
pub(super) fn outcome(answer: &CreateFleetOutput) -> (Pairs, Pairs) {
    let instances = answer.instances().iter().map(|row| {
        let kind = row.instance_type().map(InstanceType::as_str);
        (row.instance_ids().join(","), kind.unwrap_or_default().to_owned())
    });
    let errors = answer.errors().iter().map(|row| {
        let offer = row.launch_template_and_overrides();
        let kind =
            offer.and_then(|offer| offer.overrides()?.instance_type()).map(InstanceType::as_str);
        (kind.unwrap_or_default().to_owned(), row.error_code().unwrap_or_default().to_owned())
    });
    (instances.collect(), errors.collect())
}

#[tokio::test]
async fn client_token_is_idempotent_for_launches_and_templates() {
    let name = "aws::proxy::client_token_is_idempotent_for_launches_and_templates";
    let Some(bench) = Bench::start(name).await else {
        return;
    };
    let offers = [("m5.large", 0.1)];
    let first = bench.fleet("one", &offers).send().await.expect("a fleet");
    let again = bench.fleet("one", &offers).send().await.expect("a fleet");
    assert_eq!(outcome(&first), outcome(&again));
    assert_eq!(first.fleet_id(), again.fleet_id());
    let other = bench.fleet("one", &[("m5.large", 0.2)]).send().await;
    let other = other.expect_err("the same token with other parameters");
    assert_eq!(other.code(), Some("IdempotentParameterMismatch"));
    assert_eq!(bench.made(), 1);
    bench.fleet("two", &offers).send().await.expect("a fleet");
    assert_eq!(bench.made(), 2);

    let template = bench.template("three", "outrigger/one").await;
    assert_eq!(bench.template("three", "outrigger/one").await, template);
    let other = bench.template("three", "outrigger/two").await;
    assert_eq!(other, Err("IdempotentParameterMismatch".to_owned()));
    let other = bench.template("four", "outrigger/one").await;
    assert_eq!(other, Err("InvalidLaunchTemplateName.AlreadyExistsException".to_owned()));
    let stored = bench.aws.templates();
    let names: Vec<_> = stored.iter().map(|template| &template["name"]).collect();
    assert_eq!(names, [TEMPLATE, "outrigger/one"]);
    let profile = &stored[1]["data"]["IamInstanceProfile"]["Name"];
    assert_eq!(profile, bench.aws.fact("/instance_profile"));
}

#[tokio::test]
async fn new_instance_is_hidden_at_first_and_passes_through_all_states() {
    let name = "aws::proxy::new_instance_is_hidden_at_first_and_passes_through_all_states";
    let Some(bench) = Bench::start(name).await else {
        return;
    };
    // An instance changes its state only when the test sets the delay.
    let settings = |own: &Value| bench.aws.ask(own);
    settings(&json!({"do": "settings", "hide": 3600, "boot": 3600, "end": 3600}));
    let offers = [("m5.large", 0.1)];
    let answer = bench.fleet("one", &offers).send().await.expect("a fleet");
    let id = outcome(&answer).0.remove(0).0;
    assert_eq!(bench.listed().await, 0);
    let named = bench.ec2.describe_instances().instance_ids(&id);
    let unknown = named.clone().send().await.expect_err("it is hidden");
    assert_eq!(unknown.code(), Some("InvalidInstanceID.NotFound"));
    assert_eq!(bench.made(), 1);
    settings(&json!({"do": "settings", "hide": 0}));
    let shown = named.send().await.expect("it is listed");
    let instance = &shown.reservations()[0].instances()[0];
    let state = |wanted: &str| bench.aws.instances()[0]["state"] == wanted;
    assert!(state("pending"), "{:?}", bench.aws.instances());
    // Moto drops these fields of the template.
    assert_eq!(instance.security_groups().len(), 1);
    let profile = instance.iam_instance_profile().expect("a profile");
    assert!(profile.arn().is_some_and(|arn| arn.ends_with("/tests-profile")));
    assert!(instance.spot_instance_request_id().is_some());
    assert_eq!(instance.instance_lifecycle().map(|kind| kind.as_str()), Some("spot"));
    settings(&json!({"do": "settings", "boot": 0}));
    assert!(state("running"), "{:?}", bench.aws.instances());

    // It is terminated twice, and the response has its previous state.
    for before in ["running", "shutting-down"] {
        let ended = bench.ec2.terminate_instances().instance_ids(&id);
        let ended = ended.send().await.expect("it is terminated");
        let change = &ended.terminating_instances()[0];
        let was = change.previous_state().and_then(|state| state.name());
        assert_eq!(was.map(|name| name.as_str()), Some(before));
        assert!(state("shutting-down"), "{:?}", bench.aws.instances());
    }
    settings(&json!({"do": "settings", "end": 0}));
    assert!(state("terminated"), "{:?}", bench.aws.instances());
}

/// The outage, the requested types with priorities, the launched type, and the types with their
/// error codes.
type Case = (
    Value,
    &'static [(&'static str, f64)],
    Option<&'static str>,
    &'static [(&'static str, &'static str)],
);

const THREE: &[(&str, f64)] = &[("m5.large", 0.2), ("c5.large", 0.1), ("r5.large", 0.3)];
const ONE: &[(&str, f64)] = &[("c5.large", 0.1)];
const WRONG: &[(&str, f64)] = &[("zz9.huge", 0.1), ("m7g.large", 0.2), ("m5.large", 0.3)];

fn outages(subnet: &str) -> [Case; 8] {
    let out = |kind: &str, zone: Option<&str>, bought: Option<&str>| {
        let mut out = json!({"type": kind});
        out["zone"] = json!(zone);
        out["capacity_type"] = json!(bought);
        out
    };
    let elsewhere = out("c5.large", Some("us-west-2b"), None);
    let on_demand = out("c5.large", None, Some("on-demand"));
    let here = out("c5.large", Some(ZONE), Some("spot"));
    let twice = json!({"code": "UnfulfillableCapacity", "times": 2});
    let quota = json!({"code": "MaxSpotInstanceCountExceeded"});
    let full = json!({"code": "InsufficientFreeAddressesInSubnet", "subnet": subnet});
    [
        (out("t3.large", None, None), THREE, Some("c5.large"), &[]),
        (elsewhere, THREE, Some("c5.large"), &[]),
        (on_demand, THREE, Some("c5.large"), &[]),
        (here, THREE, Some("m5.large"), &[("c5.large", "InsufficientInstanceCapacity")]),
        (
            twice,
            THREE,
            Some("r5.large"),
            &[("m5.large", "UnfulfillableCapacity"), ("c5.large", "UnfulfillableCapacity")],
        ),
        (quota, ONE, None, &[("c5.large", "MaxSpotInstanceCountExceeded")]),
        (full, ONE, None, &[("c5.large", "InsufficientFreeAddressesInSubnet")]),
        (
            out("t3.large", None, None),
            WRONG,
            Some("m5.large"),
            &[("zz9.huge", "InvalidFleetConfiguration"), ("m7g.large", "InvalidParameterValue")],
        ),
    ]
}

#[tokio::test]
async fn outage_applies_by_type_zone_and_capacity_type() {
    let name = "aws::proxy::outage_applies_by_type_zone_and_capacity_type";
    let Some(bench) = Bench::start(name).await else {
        return;
    };
    bench.aws.ask(&json!({"do": "limits", "limits": null}));
    let subnet = bench.aws.fact(&format!("/subnets/{ZONE}"));
    for (number, (out, offers, kind, refused)) in outages(subnet).iter().enumerate() {
        bench.aws.outage(out);
        let before = bench.made();
        let call = bench.fleet(&format!("case {number}"), offers);
        let answer = call.send().await.expect("a fleet");
        let (instances, errors) = outcome(&answer);
        let kinds: Vec<_> = instances.iter().map(|(_, kind)| kind.as_str()).collect();
        assert_eq!(kinds, Vec::from_iter(*kind), "{out}");
        let want = refused.iter().map(|&(kind, code)| (kind.into(), code.into()));
        assert_eq!(errors, want.collect::<Pairs>(), "{out}");
        assert_eq!(bench.made() - before, kinds.len(), "{out}");
        bench.aws.clear();
    }
    let none = json!({"do": "addresses", "subnet": subnet, "free": 0});
    bench.aws.ask(&none);
    let answer = bench.fleet("no address", ONE).send().await.expect("a fleet");
    assert_eq!(outcome(&answer).1[0].1, "InsufficientFreeAddressesInSubnet");
}

#[tokio::test]
async fn injected_faults_affect_calls() {
    let name = "aws::proxy::injected_faults_affect_calls";
    let Some(bench) = Bench::start(name).await else {
        return;
    };
    let aws = &bench.aws;
    let offers = [("m5.large", 0.1)];

    // The response is lost: a retry with the same token launches no second instance.
    aws.fault("CreateFleet", "drop", &json!({}));
    let lost = bench.fleet("one", &offers).send().await;
    lost.expect_err("the response is lost");
    assert_eq!(bench.made(), 1);
    bench.fleet("one", &offers).send().await.expect("a fleet");
    assert_eq!(bench.made(), 1);
    // The request is lost.
    aws.fault("CreateFleet", "drop", &json!({"after": false}));
    let lost = bench.fleet("two", &offers).send().await;
    lost.expect_err("the request is lost");
    assert_eq!(bench.made(), 1);

    for (kind, code) in [("throttle", "RequestLimitExceeded"), ("unavailable", "Unavailable")] {
        aws.fault("ec2:DescribeSubnets", kind, &json!({"times": 2, "skip": 1}));
        assert_eq!(bench.subnets().await, Ok(7), "{kind}: skipped");
        for _ in 0..2 {
            assert_eq!(bench.subnets().await, Err(code.to_owned()));
        }
        assert_eq!(bench.subnets().await, Ok(7), "{kind}: over");
    }

    // At random, and reproducible by seed.
    let mut rounds = Vec::new();
    for _ in 0..2 {
        let half = json!({"times": null, "probability": 0.5, "seed": 7});
        aws.fault("*", "throttle", &half);
        let mut round = Vec::new();
        for _ in 0..20 {
            round.push(bench.subnets().await.is_ok());
        }
        rounds.push(round);
        aws.clear();
    }
    assert_eq!(rounds[0], rounds[1]);
    let good = rounds[0].iter().filter(|good| **good).count();
    assert!((4..=16).contains(&good), "{good} of 20");

    // One stale listing, then a current one.
    sleep(Duration::from_millis(2100)).await;
    assert_eq!(bench.listed().await, 1);
    bench.fleet("three", &offers).send().await.expect("a fleet");
    sleep(Duration::from_millis(2100)).await;
    aws.fault("DescribeInstances", "stale", &json!({}));
    assert_eq!(bench.listed().await, 1);
    assert_eq!(bench.listed().await, 2);

    aws.deny(&["ec2:DescribeSubnets", "ec2:RunInstances"]);
    let denied = "UnauthorizedOperation".to_owned();
    assert_eq!(bench.subnets().await, Err(denied.clone()));
    let answer = bench.fleet("four", &offers).send().await.expect("a fleet");
    let implied = vec![("m5.large".to_owned(), denied)];
    assert_eq!(outcome(&answer), (Vec::new(), implied));
    aws.clear();

    let faults: Vec<_> = aws.calls().iter().map(|call| call["fault"].clone()).collect();
    assert_eq!(faults.iter().filter(|fault| **fault == "drop").count(), 2);
    assert_eq!(aws.counts()["ec2:CreateFleet"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn held_call_waits_until_it_is_released() {
    let name = "aws::proxy::held_call_waits_until_it_is_released";
    let Some(bench) = Bench::start(name).await else {
        return;
    };
    for (after, made) in [(false, 0), (true, 2)] {
        let how = json!({"after": after});
        bench.aws.fault("CreateFleet", "hold", &how);
        let call = bench.fleet(&format!("held {after}"), &[("m5.large", 0.1)]);
        let call = tokio::spawn(call.send());
        let held = || bench.aws.ask(&json!({"do": "held"}))["held"] == json!(["ec2:CreateFleet"]);
        for _ in 0..POLLS {
            if held() {
                break;
            }
            sleep(POLL).await;
        }
        assert!(held(), "it is held");
        assert_eq!(bench.made(), made);
        assert_eq!(bench.subnets().await, Ok(7), "other calls are not held");
        bench.aws.ask(&json!({"do": "release"}));
        call.await.expect("a task").expect("a fleet");
        assert_eq!(bench.made(), if after { 2 } else { 1 });
    }
}

#[tokio::test]
async fn spot_and_list_prices_are_served() {
    let name = "aws::proxy::spot_and_list_prices_are_served";
    let Some(bench) = Bench::start(name).await else {
        return;
    };
    let aws = &bench.aws;
    aws.ask(&json!({"do": "prices", "types": {
        "m5.large": {"on_demand": 0.096, "spot": {ZONE: 0.0351}},
    }}));
    let prices = bench.ec2.describe_spot_price_history();
    let prices = prices.instance_types(InstanceType::from("m5.large"));
    let prices = prices.product_descriptions("Linux/UNIX").availability_zone(ZONE);
    let prices = prices.send().await.expect("prices");
    let prices = prices.spot_price_history();
    assert_eq!(prices.len(), 1);
    assert_eq!(prices[0].spot_price(), Some("0.035100"));

    let pricing = aws_sdk_pricing::Client::new(&bench.config);
    let equal = aws_sdk_pricing::types::Filter::builder()
        .r#type(aws_sdk_pricing::types::FilterType::TermMatch);
    let filter = |field: &str, value: &str| {
        let filter = equal.clone().field(field).value(value).build();
        filter.expect("a filter")
    };
    let products = pricing.get_products().service_code("AmazonEC2");
    let products = products
        .filters(filter("regionCode", aws.fact("/region")))
        .filters(filter("tenancy", "Shared"));
    let mut rows = BTreeMap::new();
    let mut pages = products.into_paginator().send();
    let mut count = 0;
    while let Some(page) = pages.next().await {
        count += 1;
        for text in page.expect("a page").price_list() {
            let row: Value = serde_json::from_str(text).expect("a product");
            let kind = row["product"]["attributes"]["instanceType"].as_str();
            rows.insert(kind.expect("a type").to_owned(), row);
        }
    }
    assert!(count > 5 && rows.len() > 500, "{count} pages, {} types", rows.len());
    let terms = rows["m5.large"]["terms"]["OnDemand"].to_string();
    assert!(terms.contains(r#""USD":"0.0960000000""#), "{terms}");
}

#[tokio::test]
async fn reservations_groups_images_and_pages_are_served() {
    let name = "aws::proxy::reservations_groups_images_and_pages_are_served";
    let Some(bench) = Bench::start(name).await else {
        return;
    };
    let aws = &bench.aws;
    aws.ask(&json!({"do": "reservation", "CapacityReservationId": "cr-1",
        "InstanceType": "m5.large", "AvailabilityZone": ZONE, "TotalInstanceCount": 3}));
    let held = bench.ec2.describe_capacity_reservations().send().await;
    let held = held.expect("reservations");
    let held = &held.capacity_reservations()[0];
    assert_eq!(held.available_instance_count(), Some(3));
    aws.ask(&json!({"do": "placement_group", "GroupName": "near", "GroupId": "pg-1"}));
    let groups = bench.ec2.describe_placement_groups().send().await;
    assert_eq!(groups.expect("groups").placement_groups().len(), 1);

    let types = bench.ec2.describe_instance_types().max_results(100);
    let first = types.clone().send().await.expect("types");
    assert_eq!(first.instance_types().len(), 100);
    assert!(first.next_token().is_some());
    let mut pages = types.into_paginator().send();
    let mut total = 0;
    while let Some(page) = pages.next().await {
        total += page.expect("a page").instance_types().len();
    }
    assert!(total > 1000, "{total} types");

    for number in 0..20 {
        let name = format!("outrigger/{number}");
        let made = bench.template(&name, &name).await;
        made.expect("a launch template");
    }
    let templates = bench.ec2.describe_launch_templates().into_paginator();
    let mut pages = templates.page_size(10).send();
    let mut total = 0;
    while let Some(page) = pages.next().await {
        total += page.expect("a page").launch_templates().len();
    }
    assert_eq!(total, 21);

    let ssm = aws_sdk_ssm::Client::new(&bench.config);
    let path = "/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/x86_64/standard/recommended";
    let image = ssm.get_parameter().name(format!("{path}/image_id")).send();
    let image = image.await.expect("a parameter").parameter;
    let image = image.and_then(|parameter| parameter.value);
    assert_eq!(image.as_deref(), Some(aws.image("al2023/x86_64/standard")));
}

#[tokio::test]
async fn instance_status_and_queue_messages_are_served() {
    let name = "aws::proxy::instance_status_and_queue_messages_are_served";
    let Some(bench) = Bench::start(name).await else {
        return;
    };
    let aws = &bench.aws;
    aws.ask(&json!({"do": "settings", "hide": 0, "boot": 0}));
    let call = bench.fleet("one", &[("m5.large", 0.1)]);
    let id = outcome(&call.send().await.expect("a fleet")).0.remove(0).0;
    let impaired = aws_sdk_ec2::types::Filter::builder()
        .name("system-status.status")
        .values("impaired")
        .build();
    let statuses = bench.ec2.describe_instance_status().filters(impaired);
    let none = statuses.clone().send().await.expect("statuses");
    assert!(none.instance_statuses().is_empty());
    aws.ask(&json!({"do": "status", "instance": id, "system_for": 150}));
    let one = statuses.send().await.expect("statuses");
    assert_eq!(one.instance_statuses()[0].instance_id(), Some(id.as_str()));

    let body = json!({"version": "0", "source": "aws.ec2", "detail": {"instance-id": id}});
    aws.send(&body);
    let sqs = aws_sdk_sqs::Client::new(&bench.config);
    let got = sqs.receive_message().queue_url(aws.fact("/queue_url"));
    let got = got.wait_time_seconds(1).send().await.expect("messages");
    let text = got.messages()[0].body().expect("a body");
    assert_eq!(serde_json::from_str::<Value>(text).expect("JSON"), body);
    let queue = aws.ask(&json!({"do": "queue"}));
    assert_eq!(queue, json!({"visible": 0, "in_flight": 1}));

    // The Node that its kubelet would register.
    let instance = aws.instances().remove(0);
    let sizes: Sizes = [("m5.large", (1930, 7000, 110))].into();
    let node = node(&instance, &sizes).expect("a node");
    let zone = instance["zone"].as_str().expect("a zone");
    assert_eq!(node["spec"]["providerID"], json!(format!("aws:///{zone}/{id}")));
    assert_eq!(node["spec"]["taints"], json!([{"key": "a", "effect": "NoSchedule"}]));
    assert_eq!(node["metadata"]["labels"]["d"], "e");
    assert_eq!(node["status"]["allocatable"]["pods"], "29");
    assert_eq!(node["status"]["allocatable"]["cpu"], "1930m");
}

#[test]
fn child_process_environment_has_only_the_test_aws() {
    let name = "aws::proxy::child_process_environment_has_only_the_test_aws";
    let Some(aws) = Aws::start_or_skip(name, &["--region", "eu-central-1"]) else {
        return;
    };
    let output = aws.command("env").output().expect("env runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let found: BTreeMap<_, _> = text.lines().filter_map(|line| line.split_once('=')).collect();
    assert!(found["AWS_ENDPOINT_URL"].starts_with("http://127.0.0.1:"));
    assert_eq!(found["AWS_REGION"], "eu-central-1");
    let known = aws.environment();
    for name in found.keys().filter(|name| **name != "PATH") {
        let set = known.iter().any(|(known, _)| known == name);
        assert!(set, "a child process gets {name}");
    }
}
