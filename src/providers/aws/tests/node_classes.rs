//! Node classes from the first AWS request to the available offerings of their pools, or the error.
//! Source: the cases of spec/aws.md §12.9 to §12.11.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::canned::{FakeAws, REGION, RecordedRequest, Reply};
use crate::bootstrap::ClusterEndpoint;
use crate::catalog::node_class::{ClassCatalog, NotReady};
use crate::engine::command::Command;
use crate::engine::event::Event;
use crate::model::claim::{ClaimOrigin, ClaimRecord};
use crate::model::cluster::{Cluster, Eks, ManagementMode};
use crate::model::instance::{Arch, CapacityType, OfferingKey};
use crate::model::labels::Labels;
use crate::model::node_class::image::{AmiFamily, ImageTerm};
use crate::model::node_class::network::SubnetTerm;
use crate::model::node_class::resolved::{
    Cause, Image, NodeClassConditionStatus, ResolvedNodeClass,
};
use crate::model::node_class::{NodeClass, NodeIdentity};
use crate::outbound::fence;
use crate::provider::{CommandResult, FailureKind, Launch};
use crate::providers::aws::clients::{Accounts, AwsClients};
use crate::providers::aws::launchable_class::validate_user_data;
use crate::providers::aws::provider::Ec2;
use crate::providers::aws::region::Regions;
use crate::providers::aws::tests::idle_calls::{self, api, node_class, start_provider};
use crate::providers::aws::{eks, zonal_shift};
use crate::providers::interface::Provider;

/// An AWS with a few resources of each type, unless the test overrides a reply.
fn aws(other: impl Fn(&RecordedRequest) -> Option<Reply> + Send + Sync + 'static) -> FakeAws {
    FakeAws::new(move |request| {
        other(request).unwrap_or_else(|| Reply::Json(idle_calls::answer(&request.operation).1))
    })
}

fn cluster(class: NodeClass, service_cidr: Option<&str>) -> Cluster {
    Cluster {
        mode: ManagementMode::Manage,
        installation: "here".to_owned(),
        name: "one".into(),
        region: REGION.to_owned(),
        eks: Some(Eks { service_cidr: service_cidr.map(str::to_owned), ..Eks::default() }),
        node_classes: vec![class],
        ..Cluster::default()
    }
}

/// A cluster's provider, after its node class is resolved.
struct Bench {
    aws: FakeAws,
    provider: Ec2,
    supply: Result<ClassCatalog, NotReady>,
    regions: Regions,
    inbox: mpsc::Receiver<Event>,
}

impl Bench {
    async fn start(cluster: Cluster, aws: FakeAws) -> Self {
        let account: AwsClients = aws.account(REGION);
        let regions = Regions::of_accounts(Accounts::from_clients(account));
        let (provider, inbox) = start_provider(&regions, cluster, api()).await;
        let mut bench = Self { aws, provider, supply: Err(NotReady::Unresolved), regions, inbox };
        let events = bench.take_events().await;
        assert_eq!(events[0], Err(NotReady::Unresolved));
        assert_eq!(NotReady::Unresolved.to_string(), "not read from AWS yet");
        bench
    }

    /// Takes the events about the class. The last one is current.
    async fn take_events(&mut self) -> Vec<Result<ClassCatalog, NotReady>> {
        let mut events = Vec::new();
        // The region task handles the event within 20 s.
        while let Ok(Some(event)) = timeout(Duration::from_secs(25), self.inbox.recv()).await {
            if let Event::ClassesChanged(all) = event {
                events.extend(all.values().map(|supply| supply.supply.clone()));
            }
        }
        if let Some(last) = events.last() {
            self.supply = last.clone();
        }
        events
    }
}

fn class() -> NodeClass {
    node_class("own", "yes", NodeIdentity::Role("node".to_owned()))
}

/// AWS error: operation, code, message.
type AwsError = (&'static str, &'static str, &'static str);

const NO_SUBNETS: &str = "not authorized to perform: ec2:DescribeSubnets on resource: * because";

type Change = fn(&mut NodeClass);
const SAME: Change = |_| {};

/// AWS error, change of the class, and the expected prefix of the reason for which it is not ready.
const READINESS_CASES: [(Option<AwsError>, Change, &str); 12] = [
    (None, SAME, ""),
    (
        Some(("DescribeSubnets", "UnauthorizedOperation", NO_SUBNETS)),
        SAME,
        "Denied: not allowed: ec2:DescribeSubnets on *; granted by statement \
         AllowRegionalReadActions",
    ),
    (
        Some(("DescribeSecurityGroups", "RequestLimitExceeded", "slow")),
        SAME,
        "Unavailable: ec2:DescribeSecurityGroups: RequestLimitExceeded",
    ),
    (
        Some(("DescribeImages", "InternalError", "sorry")),
        SAME,
        "Unavailable: ec2:DescribeImages: InternalError",
    ),
    (
        Some(("GetParameter", "ParameterNotFound", "")),
        SAME,
        "ImageNotFound: no image matches alias = \"al2023@latest\"",
    ),
    (
        Some(("GetParameter", "AccessDeniedException", "")),
        SAME,
        "Denied: not allowed: ssm:GetParameter; granted by statement AllowSSMReadActions",
    ),
    (
        Some(("AddRoleToInstanceProfile", "NoSuchEntity", "none")),
        |class| class.identity = Some(NodeIdentity::Role("other".to_owned())),
        "RoleNotFound: IAM role \"other\" does not exist",
    ),
    (
        Some(("GetInstanceProfile", "Throttling", "slow")),
        SAME,
        "Unavailable: iam:GetInstanceProfile: Throttling",
    ),
    (None, |class| class.identity = None, "InstanceProfileNotFound: the node class has neither"),
    (
        None,
        |class| class.subnets = vec![SubnetTerm::Id("subnet-9".to_owned())],
        "SubnetsNotFound: no subnet matches Id(\"subnet-9\")",
    ),
    (
        None,
        |class| {
            class.family = AmiFamily::Al2;
            class.images =
                vec![ImageTerm::Alias { family: AmiFamily::Al2, version: "latest".to_owned() }];
        },
        "UnsupportedAlias: no al2 images exist for Kubernetes 1.33",
    ),
    (
        Some(("DescribeInstanceTypes", "Unavailable", "")),
        SAME,
        "Unavailable: the instance types of the region have not been read yet",
    ),
];

#[tokio::test(start_paused = true)]
async fn node_class_is_ready_or_names_the_missing_resource() {
    for (refused, change, expect) in READINESS_CASES {
        let mut node_class = class();
        change(&mut node_class);
        let aws = aws(move |request| {
            let (operation, code, message) = refused?;
            (request.operation == operation).then_some(Reply::Error(code, message))
        });
        let bench = Bench::start(cluster(node_class, Some("10.0.0.0/16")), aws).await;
        match bench.supply {
            Ok(supply) => {
                assert_eq!(expect, "", "{refused:?}");
                assert_eq!(supply.images["m5.large"], "ami-1");
            }
            Err(why) => {
                let why = why.to_string();
                assert!(!expect.is_empty() && why.starts_with(expect), "{why}");
            }
        }
    }
}

/// An instance profile named in the class is used unchecked, without IAM requests.
#[tokio::test(start_paused = true)]
async fn node_class_with_an_instance_profile_sends_no_iam_requests() {
    for (identity, asks) in [
        (NodeIdentity::Profile("its-own".to_owned()), false),
        (NodeIdentity::Role("node".to_owned()), true),
    ] {
        let class = node_class("own", "yes", identity);
        let bench = Bench::start(cluster(class, Some("10.0.0.0/16")), aws(|_| None)).await;
        assert!(bench.supply.is_ok(), "{:?}", bench.supply);
        let operations = bench.aws.operations();
        assert_eq!(operations.contains("InstanceProfile"), asks, "{operations}");
    }
}

/// The Service addresses in EKS, if the cluster's own API does not return them.
#[tokio::test(start_paused = true)]
async fn service_cidr_is_read_from_eks_unless_configured() {
    let v4 = json!({ "serviceIpv4Cidr": "10.100.0.0/16", "ipFamily": "ipv4" });
    let v6 = json!({ "serviceIpv6Cidr": "fd00::/108", "ipFamily": "ipv6" });
    let rows = [
        (Some(v4), None, ""),
        (Some(v6), None, ""),
        (Some(json!({})), None, "ClusterCidrUnknown: "),
        (Some(json!({})), Some("10.0.0.0/16"), ""),
        (None, None, "Unavailable: the Kubernetes version of the cluster is not known yet"),
    ];
    for (says, configured, expect) in rows {
        let text = says.map(|network| {
            let body = json!({ "cluster": { "name": "one", "kubernetesNetworkConfig": network } });
            body.to_string()
        });
        let aws = aws(move |request| {
            let of_eks = request.operation.ends_with("/clusters/one");
            of_eks.then(|| match &text {
                Some(text) => Reply::Json(text.clone()),
                None => Reply::Error("ServerException", "sorry"),
            })
        });
        let bench = Bench::start(cluster(class(), configured), aws).await;
        match &bench.supply {
            Ok(_) => assert_eq!(expect, "", "{configured:?}"),
            Err(why) => {
                let why = why.to_string();
                assert!(!expect.is_empty() && why.starts_with(expect), "{why}");
            }
        }
        let operations = bench.aws.operations();
        assert!(operations.contains("/clusters/one"), "EKS has the version");
    }
}

fn home() -> ClusterEndpoint {
    ClusterEndpoint {
        name: "one".to_owned(),
        endpoint: "https://api.test".to_owned(),
        ca: "Y2E=".to_owned(),
        service_cidr: None,
        dns: None,
        ipv6: false,
        version: "1.33".to_owned(),
    }
}

fn image() -> Image {
    Image {
        id: "ami-1".to_owned(),
        name: "eks".to_owned(),
        arch: Arch::Amd64,
        variants: Vec::new(),
        created: None,
        deprecated: false,
    }
}

/// An incompressible script.
fn random_script() -> String {
    let mut rng = fastrand::Rng::with_seed(1);
    let letters: String = (0..40_000).map(|_| rng.alphanumeric()).collect();
    format!("#!/bin/sh\n# {letters}")
}

fn set_long_user_data(class: &mut NodeClass, _: &mut ClusterEndpoint) {
    class.user_data = random_script();
}

const VALID_DATA: &str = "";

/// Family, changes of the class and its cluster, and the expected user data error.
type UserDataCase = (AmiFamily, fn(&mut NodeClass, &mut ClusterEndpoint), &'static str);

const USER_DATA_CASES: [UserDataCase; 16] = [
    (AmiFamily::Al2023, |_, _| {}, "ClusterCidrUnknown"),
    (AmiFamily::Al2023, |_, home| home.service_cidr = Some("10.0.0.0/16".to_owned()), VALID_DATA),
    (AmiFamily::Al2023, |_, home| home.service_cidr = Some("fd00::/108".to_owned()), VALID_DATA),
    (AmiFamily::Al2, |_, _| {}, VALID_DATA),
    (AmiFamily::Bottlerocket, |_, _| {}, VALID_DATA),
    (AmiFamily::Windows2019, |_, _| {}, VALID_DATA),
    (AmiFamily::Windows2022, |_, _| {}, VALID_DATA),
    (AmiFamily::Windows2025, |_, _| {}, VALID_DATA),
    (AmiFamily::Custom, |_, _| {}, VALID_DATA),
    (AmiFamily::Al2, set_long_user_data, "UserDataTooLarge"),
    (AmiFamily::Custom, set_long_user_data, "UserDataTooLarge"),
    (AmiFamily::Windows2022, |class, _| class.user_data = "x".repeat(17_000), "UserDataTooLarge"),
    // Short but invalid in another way. The error must not report the length.
    (
        AmiFamily::Al2,
        |class, _| class.user_data = "MIME-Version: 1.0\n\nno boundary".to_owned(),
        "UserDataInvalid",
    ),
    (
        AmiFamily::Bottlerocket,
        |class, _| class.user_data = "no = [toml".to_owned(),
        "UserDataInvalid",
    ),
    (
        AmiFamily::Bottlerocket,
        |class, _| {
            let setting = ("registryPullQPS".to_owned(), json!(10));
            class.kubelet.extra = [setting].into();
        },
        "UnsupportedKubeletSetting",
    ),
    (AmiFamily::Bottlerocket, |_, home| home.endpoint.clear(), "Unavailable"),
];

#[test]
fn node_class_is_valid_when_its_user_data_can_be_rendered() {
    let resolved = ResolvedNodeClass { images: vec![image()], ..ResolvedNodeClass::default() };
    for (family, change, expect) in USER_DATA_CASES {
        let mut class = NodeClass { family, ..NodeClass::default() };
        let mut home = home();
        change(&mut class, &mut home);
        let condition = validate_user_data(&class, &resolved, Some(&home));
        let cause = condition.cause.map_or(VALID_DATA, Cause::as_str);
        assert_eq!(cause, expect, "{family:?} {}", condition.message);
        let status = match expect {
            "" => NodeClassConditionStatus::True,
            "Unavailable" => NodeClassConditionStatus::Unknown,
            _ => NodeClassConditionStatus::False,
        };
        assert_eq!(condition.status, status, "{family:?} {}", condition.message);
    }
    // Addresses of DNS are irrelevant here. Without a response from the cluster, nothing can be
    // rendered.
    let mut known = home();
    known.dns = Some(IpAddr::from([10, 0, 0, 10]));
    let condition = validate_user_data(&NodeClass::default(), &resolved, Some(&known));
    assert_eq!(condition.status, NodeClassConditionStatus::True);
    let condition = validate_user_data(&NodeClass::default(), &resolved, None);
    assert_eq!(
        (condition.status, condition.cause),
        (NodeClassConditionStatus::Unknown, Some(Cause::Unavailable))
    );
}

fn launch(class: Option<&str>, hash: &str) -> Box<Launch> {
    let claim = ClaimRecord {
        id: "claim-1".into(),
        installation: "here".to_owned(),
        cluster: "one".into(),
        origin: ClaimOrigin::default(),
        pool: "general".into(),
        node_class: class.map(Into::into),
        created: Timestamp::UNIX_EPOCH,
        expire_after: None,
        expire_hard_after: None,
        termination_grace_period: None,
        pool_hash: "v2:1".to_owned(),
        node_class_hash: hash.to_owned(),
        startup_taints: Vec::new(),
        reason: "provisioned".to_owned(),
        command_id: "1".to_owned(),
    };
    Box::new(Launch {
        offerings: vec![OfferingKey {
            instance_type: "m5.large".into(),
            zone: "us-west-2a".into(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
        }],
        labels: Labels::new(),
        taints: Vec::new(),
        tags: claim.to_tags(),
        devices: BTreeSet::new(),
        overlaid: false,
        relaxed: false,
        varied: false,
        claim,
    })
}

/// A launch from a class that is unknown, not ready or changed sends no EC2 request and is planned
/// again.
#[tokio::test(start_paused = true)]
async fn launch_is_rejected_when_the_node_class_is_not_as_planned() {
    let hash = crate::model::template_hash::node_class_hash(Some(&class()));
    let hash = hash.as_str();
    let rows = [
        (None, hash, false, "not resolved yet"),
        (Some("other"), hash, false, "not resolved yet"),
        (Some("default"), "v2:1:2", false, "has changed"),
        (Some("default"), hash, true, "SubnetsNotFound"),
    ];
    for (name, hash, empty, expect) in rows {
        let aws = aws(move |request| {
            let none = empty && request.operation == "DescribeSubnets";
            none.then(|| Reply::Xml("<subnetSet/>".to_owned()))
        });
        let bench = Bench::start(cluster(class(), Some("10.0.0.0/16")), aws).await;
        bench.aws.take_requests();
        let command = Command::Launch(launch(name, hash));
        let answer = fence::run_unfenced(bench.provider.execute(command)).await;
        let CommandResult::Failed { kind, text } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(kind, FailureKind::Conflict, "{text}");
        assert!(text.contains(expect), "{text}");
        assert_eq!(bench.aws.operations(), "");
    }
}

/// Zonal shifts as reported, and which of them are active.
const PAST: i64 = 1_500_000_000;
const FUTURE: i64 = 4_102_444_800;

fn zone_shift(zone: &str, status: &str, ends: i64) -> Value {
    json!({
        "appliedStatus": status, "awayFrom": zone, "comment": "", "expiryTime": ends,
        "resourceIdentifier": "arn", "startTime": PAST, "zonalShiftId": "1",
    })
}

fn autoshift(zone: &str, status: &str) -> Value {
    json!({ "appliedStatus": status, "awayFrom": zone, "startTime": PAST })
}

#[tokio::test]
async fn shifted_zones_are_those_with_an_active_zonal_shift() {
    let applied = zone_shift("usw2-az1", "APPLIED", FUTURE);
    let rows = [
        (vec![], vec![], ""),
        (vec![applied.clone()], vec![], "usw2-az1"),
        (vec![zone_shift("usw2-az1", "APPLIED", PAST)], vec![], ""),
        (vec![zone_shift("usw2-az1", "NOT_APPLIED", FUTURE)], vec![], ""),
        (vec![], vec![autoshift("usw2-az2", "APPLIED")], "usw2-az2"),
        (vec![], vec![autoshift("usw2-az2", "NOT_APPLIED")], ""),
        (vec![applied], vec![autoshift("usw2-az2", "APPLIED")], "usw2-az1 usw2-az2"),
    ];
    for (shifts, autoshifts, expect) in rows {
        let text = json!({
            "name": "one", "appliedWeights": {}, "zonalShifts": shifts, "autoshifts": autoshifts,
        });
        let text = text.to_string();
        let aws = FakeAws::new(move |_| Reply::Json(text.clone()));
        let all = zonal_shift::shifted_zones(&aws.account(REGION), "arn").await;
        let all: Vec<String> = all.expect("zones").into_iter().collect();
        assert_eq!(all.join(" "), expect);
    }
    // An unregistered cluster has no shifts. An unreadable response is an error.
    for (code, is_fault) in [("ResourceNotFoundException", false), ("Oops", true)] {
        let aws = FakeAws::new(move |_| Reply::Error(code, "why"));
        let all = zonal_shift::shifted_zones(&aws.account(REGION), "arn").await;
        assert_eq!(all.is_err(), is_fault, "{code}");
    }
}

/// The offerings of a zone are removed by a shift and restored after it. A shift of a zone without
/// a subnet of the class is ignored.
#[tokio::test(start_paused = true)]
async fn zonal_shift_removes_and_restores_offerings_of_a_zone() {
    let away = Arc::new(Mutex::new(""));
    let shifted_zone = away.clone();
    let aws = aws(move |request| {
        if request.operation.ends_with("/clusters/one") {
            let body =
                json!({ "cluster": { "name": "one", "arn": "arn:aws:eks:r:1:cluster/one" } });
            return Some(Reply::Json(body.to_string()));
        }
        if !request.operation.contains("/managedresources/") {
            return None;
        }
        let shifts = match *shifted_zone.lock().expect("no panic") {
            "" => vec![],
            zone => vec![json!({
                "appliedStatus": "APPLIED", "awayFrom": zone, "comment": "",
                "expiryTime": 4_102_444_800_i64, "resourceIdentifier": "arn",
                "startTime": 1_500_000_000, "zonalShiftId": "1",
            })],
        };
        let body = json!({ "appliedWeights": {}, "zonalShifts": shifts, "autoshifts": [] });
        Some(Reply::Json(body.to_string()))
    });
    let shifted = Cluster { zonal_shift: true, ..cluster(class(), Some("10.0.0.0/16")) };
    let mut bench = Bench::start(shifted, aws).await;
    for (zone, available) in
        [("", true), ("usw2-az9", true), ("usw2-az1", false), ("usw2-az1", false), ("", true)]
    {
        *away.lock().expect("no panic") = zone;
        tokio::time::sleep(Duration::from_secs(60)).await;
        bench.regions.trigger_reads().await;
        bench.take_events().await;
        let supply = bench.supply.as_ref().expect("a ready class");
        let it = supply.catalog.get("m5.large").expect("a type");
        let sold = it.offerings.iter().any(|offering| offering.available);
        assert_eq!(sold, available, "{zone}");
    }
}

/// The endpoint of an EKS cluster is the configured one, or else the one returned by EKS.
#[tokio::test]
async fn api_endpoint_is_configured_or_read_from_eks() {
    const CA: Option<&str> = Some("Y2E=");
    const URL: Option<&str> = Some("https://own.test");
    let known = json!({ "cluster": {
        "name": "one", "endpoint": "https://eks.test", "certificateAuthority": { "data": "ZWtz" },
    } });
    let creating = json!({ "cluster": { "name": "one", "status": "CREATING" } });
    let rows = [
        (URL, CA, None, Ok(("https://own.test", "ca"))),
        (None, None, Some(&known), Ok(("https://eks.test", "eks"))),
        (URL, None, Some(&known), Ok(("https://own.test", "eks"))),
        (None, CA, Some(&known), Ok(("https://eks.test", "ca"))),
        (None, None, Some(&creating), Err("does not return the endpoint")),
        (URL, None, Some(&creating), Err("does not return the CA")),
        (URL, Some("?"), None, Err("not valid base64")),
        (None, None, None, Err("eks:DescribeCluster")),
    ];
    for (endpoint, ca, says, expect) in rows {
        let text = says.map(ToString::to_string);
        let aws = FakeAws::new(move |_| match &text {
            Some(text) => Reply::Json(text.clone()),
            None => Reply::Error("ServerException", "sorry"),
        });
        let eks = Eks {
            endpoint: endpoint.map(str::to_owned),
            ca_data: ca.map(str::to_owned),
            ..Eks::default()
        };
        let account = Arc::new(aws.account(REGION));
        let one = cluster(class(), None);
        let issued = eks::cluster_access(account, &one, &eks).await;
        match (issued, expect) {
            (Ok(token_cluster), Ok((endpoint, ca))) => {
                assert_eq!(
                    (token_cluster.endpoint.as_str(), &token_cluster.ca[..]),
                    (endpoint, ca.as_bytes())
                );
                assert!(token_cluster.bearer.current_header().starts_with("Bearer k8s-aws-v1."));
            }
            (Err(error), Err(expect)) => {
                let why = error.to_string();
                assert!(why.contains(expect), "{why}");
            }
            (issued, expect) => {
                panic!("{:?}, not {expect:?}", issued.map(|token_cluster| token_cluster.endpoint))
            }
        }
        let request_count = aws.take_requests().len();
        assert_eq!(request_count, usize::from(endpoint.is_none() || ca.is_none()));
    }
}
