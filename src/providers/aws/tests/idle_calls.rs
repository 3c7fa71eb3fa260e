//! AWS requests of ten idle clusters in an hour, counted on the wire in virtual time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::retry::RetryConfig;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tower::service_fn;

use crate::engine::command::Command;
use crate::engine::event::Event;
use crate::kubernetes::client::Connection;
use crate::model::cluster::{Cluster, Eks, InterruptionQueue, ManagementMode};
use crate::model::labels::Labels;
use crate::model::node_class::image::{AmiFamily, ImageTerm};
use crate::model::node_class::network::{SecurityGroupTerm, SubnetTerm};
use crate::model::node_class::{NodeClass, NodeIdentity};
use crate::model::pool::Pool;
use crate::provider::CommandResult;
use crate::providers::aws::clients::{AccountKey, Accounts, AwsClients};
use crate::providers::aws::provider::Ec2;
use crate::providers::aws::region::Regions;
use crate::providers::interface::Provider;

const CLUSTERS: usize = 10;

/// Calls of one idle Karpenter in an hour, with one node class (spec/aws.md §13.3): listings of
/// instances 90; their status 180; subnets, groups and images 60 each; `DescribeCluster` 12;
/// instance profiles 4 and 2; the queue 180; validation twice, of about five calls.
const KARPENTER: u64 = 90 + 180 + 3 * 60 + 12 + 6 + 180 + 2 * 5;

/// Number of requests by service and operation.
pub(crate) type Counts = Arc<Mutex<BTreeMap<String, u64>>>;

/// EC2 errors by operation: code and message.
pub(crate) type OperationErrors = Arc<Mutex<BTreeMap<&'static str, (&'static str, &'static str)>>>;

/// An almost empty AWS.
#[derive(Clone, Debug)]
struct IdleAws(Counts, OperationErrors);

impl HttpConnector for IdleAws {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (counts, refused) = (self.0.clone(), self.1.clone());
        HttpConnectorFuture::new(async move {
            let operation = operation(&request);
            let is_dry = text(&request).contains("DryRun=true");
            if let Ok(mut counts) = counts.lock() {
                *counts.entry(operation.clone()).or_default() += 1;
            }
            if operation == "ReceiveMessage" {
                // Receiving from an empty queue takes the maximum wait time.
                sleep(Duration::from_secs(20)).await;
            }
            let no = refused.lock().expect("no panic");
            let no = no.get(operation.as_str()).copied();
            // No dry run succeeds.
            let dry = ("DryRunOperation", "Request would have succeeded.");
            let no = no.or(is_dry.then_some(dry));
            let (kind, body) = match no {
                Some((code, message)) => ("text/xml", refusal(code, message)),
                None => answer(&operation),
            };
            let answer = http::Response::builder()
                .status(no.map_or(200, |_| 400))
                .header("content-type", kind)
                .body(SdkBody::from(body))
                .expect("a response");
            Ok(HttpResponse::try_from(answer).expect("a response"))
        })
    }
}

fn text(request: &HttpRequest) -> String {
    let body = request.body().bytes().unwrap_or_default();
    String::from_utf8_lossy(body).into_owned()
}

/// The operation of a request in any protocol.
fn operation(request: &HttpRequest) -> String {
    if let Some(target) = request.headers().get("x-amz-target") {
        return target.rsplit('.').next().unwrap_or(target).to_owned();
    }
    let body = text(request);
    let action = body.split('&').find_map(|part| part.strip_prefix("Action="));
    action.unwrap_or(request.uri()).to_owned()
}

fn refusal(code: &str, message: &str) -> String {
    format!(
        "<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>\
         <RequestID>r</RequestID></Response>"
    )
}

pub(crate) fn answer(operation: &str) -> (&'static str, String) {
    let tags = "<tagSet><item><key>own</key><value>yes</value></item></tagSet>";
    let inner = match operation {
        "DescribeSubnets" => format!(
            "<subnetSet><item><subnetId>subnet-1</subnetId><availabilityZone>us-west-2a\
             </availabilityZone><availabilityZoneId>usw2-az1</availabilityZoneId>\
             <availableIpAddressCount>250</availableIpAddressCount>{tags}</item></subnetSet>"
        ),
        "DescribeSecurityGroups" => format!(
            "<securityGroupInfo><item><groupId>sg-1</groupId><groupName>nodes</groupName>{tags}\
             </item></securityGroupInfo>"
        ),
        "DescribeImages" => String::from(
            "<imagesSet><item><imageId>ami-1</imageId><name>eks</name><architecture>x86_64\
             </architecture><creationDate>2026-01-01T00:00:00.000Z</creationDate></item>\
             </imagesSet>",
        ),
        "DescribeInstanceTypes" => String::from(
            "<instanceTypeSet><item><instanceType>m5.large</instanceType><supportedUsageClasses>\
             <item>on-demand</item></supportedUsageClasses><processorInfo>\
             <supportedArchitectures><item>x86_64</item></supportedArchitectures></processorInfo>\
             <vCpuInfo><defaultVCpus>2</defaultVCpus></vCpuInfo><memoryInfo><sizeInMiB>8192\
             </sizeInMiB></memoryInfo></item></instanceTypeSet>",
        ),
        "DescribeInstanceTypeOfferings" => String::from(
            "<instanceTypeOfferingSet><item><instanceType>m5.large</instanceType><locationType>\
             availability-zone</locationType><location>us-west-2a</location></item>\
             </instanceTypeOfferingSet>",
        ),
        "GetInstanceProfile" => String::from(
            "<GetInstanceProfileResult><InstanceProfile><Path>/</Path><InstanceProfileName>p\
             </InstanceProfileName><InstanceProfileId>p</InstanceProfileId><Arn>a</Arn>\
             <CreateDate>2026-01-01T00:00:00Z</CreateDate><Roles><member><Path>/</Path><RoleName>\
             node</RoleName><RoleId>r</RoleId><Arn>a</Arn><CreateDate>2026-01-01T00:00:00Z\
             </CreateDate></member></Roles></InstanceProfile></GetInstanceProfileResult>",
        ),
        "ListInstanceProfiles" => String::from(
            "<ListInstanceProfilesResult><InstanceProfiles/><IsTruncated>false</IsTruncated>\
             </ListInstanceProfilesResult>",
        ),
        "GetParameter" => return json(r#"{"Parameter":{"Value":"ami-1"}}"#),
        "GetQueueUrl" => return json(r#"{"QueueUrl":"https://queue.test/1/q"}"#),
        "GetProducts" => return json(r#"{"PriceList":[]}"#),
        "ReceiveMessage" => return json("{}"),
        // DescribeCluster has no operation in its request.
        path if path.contains("/clusters/") => {
            return json(r#"{"cluster":{"version":"1.33","endpoint":"https://eks.test"}}"#);
        }
        _ => String::new(),
    };
    let text = format!("<{operation}Response>{inner}</{operation}Response>");
    ("text/xml", text)
}

fn json(text: &str) -> (&'static str, String) {
    ("application/x-amz-json-1.0", text.to_owned())
}

/// A cluster's API that only returns its version.
pub(crate) fn api() -> Connection {
    Connection::from_client(Client::new(
        service_fn(|request: Request<Body>| async move {
            let (status, body) = match request.uri().path() {
                "/version" => (
                    200,
                    r#"{"major":"1","minor":"33","gitVersion":"","gitCommit":"","gitTreeState":"",
                "buildDate":"","goVersion":"","compiler":"","platform":""}"#,
                ),
                _ => (
                    404,
                    r#"{"kind":"Status","status":"Failure","reason":"NotFound","message":"",
                "code":404}"#,
                ),
            };
            let answer = Response::builder().status(status);
            Ok::<_, tower::BoxError>(answer.body(Body::from(body.as_bytes().to_vec()))?)
        }),
        "default",
    ))
}

/// A node class of EKS images whose subnets and security groups have this tag.
pub(crate) fn node_class(key: &str, value: &str, identity: NodeIdentity) -> NodeClass {
    let tags = Labels::from([(key.to_owned(), value.to_owned())]);
    NodeClass {
        name: "default".into(),
        family: AmiFamily::Al2023,
        images: vec![ImageTerm::Alias { family: AmiFamily::Al2023, version: "latest".to_owned() }],
        subnets: vec![SubnetTerm::Tags(tags.clone())],
        security_groups: vec![SecurityGroupTerm::Tags(tags)],
        identity: Some(identity),
        ..NodeClass::default()
    }
}

pub(crate) fn cluster(number: usize) -> Cluster {
    let class = node_class("own", "yes", NodeIdentity::Role("node".to_owned()));
    Cluster {
        mode: ManagementMode::Manage,
        installation: "here".to_owned(),
        name: format!("c{number}").into(),
        region: "us-west-2".to_owned(),
        eks: Some(Eks { service_cidr: Some("10.0.0.0/16".to_owned()), ..Eks::default() }),
        interruption: Some(InterruptionQueue {
            queue: "q".to_owned(),
            ..InterruptionQueue::default()
        }),
        pools: vec![Pool { node_class: Some(class.name.clone()), ..Pool::new("default") }],
        node_classes: vec![class],
        ..Cluster::default()
    }
}

pub(crate) fn regions(counts: &Counts, refused: &OperationErrors) -> Regions {
    let aws = IdleAws(counts.clone(), refused.clone());
    let credentials = Credentials::new("key", "secret", None, None, "test");
    let config = SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-west-2"))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .retry_config(RetryConfig::disabled())
        .http_client(http_client_fn(move |_, _| SharedHttpConnector::new(aws.clone())))
        .build();
    let key = AccountKey::from_cluster(&cluster(0));
    Regions::of_accounts(Accounts::from_clients(AwsClients::from_config(key, config)))
}

/// The provider of a cluster that this host leads, and its events.
pub(crate) async fn start_provider(
    regions: &Regions,
    cluster: Cluster,
    api: Connection,
) -> (Ec2, mpsc::Receiver<Event>) {
    let cluster = Arc::new(cluster);
    let provider = Ec2::new(cluster.clone(), api, regions.handle_for(&cluster).await);
    let (events, inbox) = mpsc::channel(64);
    provider.register_cluster(cluster, Some(events)).await;
    (provider, inbox)
}

#[tokio::test(start_paused = true)]
async fn idle_clusters_send_a_tenth_of_the_requests_of_karpenter() {
    let counts = Counts::default();
    let regions = regions(&counts, &OperationErrors::default());
    let mut providers = Vec::new();
    let event_count = Arc::new(AtomicUsize::new(0));
    for number in 0..CLUSTERS {
        let cluster = Arc::new(cluster(number));
        let region_handle = regions.handle_for(&cluster).await;
        let provider = Ec2::new(cluster.clone(), api(), region_handle);
        let (events, mut inbox) = mpsc::channel(64);
        let event_count = event_count.clone();
        tokio::spawn(async move {
            while inbox.recv().await.is_some() {
                event_count.fetch_add(1, Ordering::Relaxed);
            }
        });
        provider.register_cluster(cluster, Some(events)).await;
        providers.push(provider);
    }
    // Requests at startup do not count.
    sleep(Duration::from_mins(2)).await;
    let startup_counts = std::mem::take(&mut *counts.lock().expect("no panic"));
    // Each node class was validated once, and is not validated again until it changes.
    let tried = ["CreateLaunchTemplate", "RunInstances", "CreateFleet"];
    assert_eq!(tried.map(|name| startup_counts.get(name)), [Some(&10); 3], "{startup_counts:?}");
    assert!(event_count.swap(0, Ordering::Relaxed) > CLUSTERS);
    for _ in 0..60 {
        regions.trigger_reads().await;
        // Engines of an idle cluster list instances every minute, each at a different time.
        for provider in &providers {
            let answer = provider.execute(Command::ListInstances).await;
            assert_eq!(answer, CommandResult::Instances(Vec::new()));
            sleep(Duration::from_secs(6)).await;
        }
    }
    let counts = counts.lock().expect("no panic").clone();
    let all: u64 = counts.values().sum();
    let max = KARPENTER * CLUSTERS as u64 / 10;
    println!("{all} calls in an hour, {max} allowed: {counts:#?}");
    assert!(counts.len() > 6, "{counts:?}");
    // Node classes were resolved repeatedly. Unchanged results cause no events.
    assert_eq!(event_count.load(Ordering::Relaxed), 0, "events of an idle hour");
    // EKS was asked once for each cluster.
    let describes = |all: &BTreeMap<String, u64>| -> u64 {
        all.iter().filter(|(name, _)| name.contains("/clusters/")).map(|(_, count)| count).sum()
    };
    assert_eq!((describes(&startup_counts), describes(&counts)), (CLUSTERS as u64, 0));
    assert!(all <= max, "{all} calls, {max} allowed: {counts:#?}");
}
