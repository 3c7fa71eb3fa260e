//! Cluster information for nodes, and its sources.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use tokio::time;
use tower::service_fn;

use super::canned::{FakeAws, REGION, Reply};
use crate::bootstrap::ClusterEndpoint;
use crate::kubernetes::client::Connection;
use crate::model::cluster::{Cluster, Eks};
use crate::providers::aws::cluster_info::{HomeError, KnownCluster, read_cluster_info};
use crate::providers::aws::refresh_schedule::{RefreshSchedule, RefreshTask};

/// A cluster's API of this minor version, with DNS and Service addresses if given.
fn api(minor: &'static str, dns: &'static str, services: &'static str) -> Connection {
    let service = service_fn(move |request: Request<Body>| async move {
        let found = match request.uri().path() {
            "/version" => format!(
                r#"{{"major":"1","minor":"{minor}","gitVersion":"","gitCommit":"",
                "gitTreeState":"","buildDate":"","goVersion":"","compiler":"",
                "platform":""}}"#
            ),
            "/api/v1/namespaces/kube-system/services/kube-dns" if !dns.is_empty() => {
                format!(r#"{{"metadata":{{}},"spec":{{"clusterIP":"{dns}"}}}}"#)
            }
            "/apis/networking.k8s.io/v1/servicecidrs/kubernetes" if !services.is_empty() => {
                format!(r#"{{"metadata":{{}},"spec":{{"cidrs":["{services}"]}}}}"#)
            }
            _ => String::new(),
        };
        let none = r#"{"kind":"Status","status":"Failure","reason":"NotFound","message":"",
            "code":404}"#;
        let (status, body) = match found.is_empty() {
            true => (404, none.to_owned()),
            false => (200, found),
        };
        let answer = Response::builder().status(status);
        Ok::<_, tower::BoxError>(answer.body(Body::from(body.into_bytes()))?)
    });
    Connection::from_client(Client::new(service, "default"))
}

async fn endpoint_of(cluster: &Cluster, connection: &Connection, aws: &FakeAws) -> ClusterEndpoint {
    let known = &mut KnownCluster::default();
    let home = read_cluster_info(cluster, connection, &aws.account(REGION), known).await;
    home.expect("cluster information").home
}

/// The address family of the DNS determines the address family of the cluster.
#[tokio::test]
async fn version_and_addresses_are_read_from_the_cluster_api() {
    let aws = FakeAws::new(|_| Reply::NoResponse(Duration::ZERO));
    let cluster = Cluster { name: "own".into(), ..Cluster::default() };
    let rows = [
        ("33", "10.100.0.10", "10.100.0.0/16", "1.33", false),
        ("34+", "fd30::a", "fd30::/108", "1.34", true),
        ("32", "", "", "1.32", false),
        ("32", "None", "", "1.32", false),
    ];
    for (minor, dns, services, version, ipv6) in rows {
        let endpoint = endpoint_of(&cluster, &api(minor, dns, services), &aws).await;
        assert_eq!((endpoint.version.as_str(), endpoint.ipv6), (version, ipv6));
        assert_eq!(endpoint.dns, dns.parse().ok());
        let services = Some(services).filter(|service| !service.is_empty());
        assert_eq!(endpoint.service_cidr.as_deref(), services);
        assert_eq!((endpoint.name.as_str(), endpoint.ca.is_empty()), ("own", false));
    }
    assert_eq!(aws.take_requests().len(), 0, "not an EKS cluster");
}

fn eks_cluster(service_cidr: &str) -> Cluster {
    Cluster {
        name: "own".into(),
        eks: Some(Eks {
            name: Some("theirs".to_owned()),
            service_cidr: Some(service_cidr.to_owned()).filter(|cidr| !cidr.is_empty()),
            ..Eks::default()
        }),
        ..Cluster::default()
    }
}

/// The Service addresses are those of the configuration, the API or EKS, in this order. The
/// endpoint, its CA and the version are those of EKS. An endpoint of the `eks` block takes
/// precedence.
#[tokio::test]
async fn eks_has_the_version_and_endpoint_and_missing_service_addresses() {
    type Row = (&'static str, &'static str, &'static str, Option<&'static str>);
    const V4: &str = r#"{"serviceIpv4Cidr":"10.1.0.0/16"}"#;
    const V6: &str = r#"{"serviceIpv6Cidr":"fd31::/108"}"#;
    let rows: [Row; 5] = [
        ("10.9.0.0/16", "10.2.0.0/16", V4, Some("10.9.0.0/16")),
        ("", "10.2.0.0/16", V4, Some("10.2.0.0/16")),
        ("", "", V4, Some("10.1.0.0/16")),
        ("", "", V6, Some("fd31::/108")),
        ("", "", "{}", None),
    ];
    for (given, api_says, eks, expect) in rows {
        let aws = FakeAws::new(move |request| {
            assert_eq!(request.operation, "https://eks.us-west-2.amazonaws.com/clusters/theirs");
            Reply::Json(format!(
                r#"{{"cluster":{{"kubernetesNetworkConfig":{eks},"version":"1.32",
                "endpoint":"https://theirs.eks","certificateAuthority":{{"data":"dGhlaXJz"}}}}}}"#
            ))
        });
        let mut cluster = eks_cluster(given);
        let endpoint = endpoint_of(&cluster, &api("33", "", api_says), &aws).await;
        assert_eq!(endpoint.service_cidr.as_deref(), expect);
        assert_eq!((endpoint.name.as_str(), endpoint.version.as_str()), ("theirs", "1.32"));
        let address = |endpoint: ClusterEndpoint| (endpoint.endpoint, endpoint.ca);
        let pair = |url: &str, ca: &str| (url.to_owned(), ca.to_owned());
        assert_eq!(address(endpoint), pair("https://theirs.eks", "dGhlaXJz"));
        assert_eq!(aws.take_requests().len(), 1);
        cluster.node_endpoint = Some("https://nodes".to_owned());
        let endpoint = endpoint_of(&cluster, &api("33", "", api_says), &aws).await;
        assert_eq!(address(endpoint), pair("https://nodes", "dGhlaXJz"));
        cluster.node_endpoint = None;
        let eks = cluster.eks.as_mut().expect("an EKS cluster");
        eks.endpoint = Some("https://configured".to_owned());
        let endpoint = endpoint_of(&cluster, &api("33", "", api_says), &aws).await;
        assert_eq!(address(endpoint), pair("https://configured", "dGhlaXJz"));
        cluster.eks.as_mut().expect("an EKS cluster").ca_data = Some("b3du".to_owned());
        let endpoint = endpoint_of(&cluster, &api("33", "", api_says), &aws).await;
        assert_eq!(address(endpoint), pair("https://configured", "b3du"));
    }
}

/// An endpoint of EKS or of the `eks` block is never combined with the CA of the host's connection.
#[tokio::test]
async fn endpoint_without_its_ca_is_not_used() {
    let aws = FakeAws::new(|_| {
        Reply::Json(r#"{"cluster":{"version":"1.33","endpoint":"https://theirs.eks"}}"#.to_owned())
    });
    for configured in [None, Some("https://configured".to_owned())] {
        let mut cluster = eks_cluster("10.9.0.0/16");
        cluster.eks.as_mut().expect("an EKS cluster").endpoint = configured;
        let endpoint = endpoint_of(&cluster, &api("33", "", ""), &aws).await;
        assert_eq!(endpoint.endpoint, "https://api.test");
    }
}

/// Without access to EKS, the data of the API server are used.
#[tokio::test]
async fn refused_eks_call_is_an_error_only_without_service_addresses() {
    let rows = [
        ("10.9.0.0/16", "AccessDeniedException", true),
        ("10.9.0.0/16", "ResourceNotFoundException", true),
        ("", "AccessDeniedException", false),
    ];
    for (cidr, code, is_read) in rows {
        let aws = FakeAws::new(move |_| Reply::Error(code, "no"));
        let (cluster, api) = (eks_cluster(cidr), api("33", "", ""));
        let (account, mut known) = (aws.account(REGION), KnownCluster::default());
        // An unchanged text is logged once.
        let mut missing = None;
        for _ in 0..3 {
            let info = read_cluster_info(&cluster, &api, &account, &mut known).await;
            assert_eq!(info.is_ok(), is_read);
            if let Ok(info) = info {
                assert_eq!(info.home.version, "1.33");
                assert!(info.missing.concat().contains("DescribeCluster"), "{:?}", info.missing);
                assert_eq!(*missing.get_or_insert(info.missing.clone()), info.missing);
            }
            assert_eq!(aws.take_requests().len(), 1);
        }
    }
}

/// After one failure, the data of the API server could be those of another endpoint or of a newer
/// version that only some API servers have.
#[tokio::test(start_paused = true)]
async fn failures_of_eks_keep_its_data() {
    let is_down = Arc::new(AtomicBool::new(true));
    let down = is_down.clone();
    let aws = FakeAws::new(move |_| match down.load(Ordering::Relaxed) {
        true => Reply::Error("ExpiredTokenException", "no"),
        false => Reply::Json(r#"{"cluster":{"version":"1.33"}}"#.to_owned()),
    });
    let cluster = eks_cluster("10.9.0.0/16");
    let (account, mut known) = (aws.account(REGION), KnownCluster::default());
    let read = async |minor: &'static str, known: &mut KnownCluster| {
        let info = read_cluster_info(&cluster, &api(minor, "", ""), &account, known).await;
        info.map(|info| info.home.version)
    };
    for _ in 0..2 {
        let error = read("34", &mut known).await.expect_err("EKS does not answer");
        assert!(matches!(error, HomeError::Eks(_)), "{error:?}");
    }
    assert_eq!(read("34", &mut known).await.expect("enough failures"), "1.34");
    is_down.store(false, Ordering::Relaxed);
    assert_eq!(read("34", &mut known).await.expect("EKS answers"), "1.33");
    is_down.store(true, Ordering::Relaxed);
    assert_eq!(read("34", &mut known).await.expect("the data are known"), "1.33");
    // The data of another API server do not count.
    let mut other = api("34", "", "");
    other.server = "https://another".to_owned();
    let info = read_cluster_info(&cluster, &other, &account, &mut known).await;
    assert!(info.is_err());
}

/// During an upgrade, each API server returns its own version.
#[tokio::test(start_paused = true)]
async fn version_is_the_lowest_one_during_an_upgrade() {
    let reads = ["33", "34", "33", "34", "34", "34"];
    let reads = reads.into_iter().zip(["1.33", "1.33", "1.33", "1.33", "1.34", "1.34"]);
    let plain = Cluster { name: "own".into(), ..Cluster::default() };
    for cluster in [plain, eks_cluster("")] {
        let is_eks = cluster.eks.is_some();
        let calls = AtomicUsize::new(0);
        // EKS has the new version at the end of the upgrade.
        let aws = FakeAws::new(move |_| {
            let is_new = calls.fetch_add(1, Ordering::Relaxed) >= 3;
            let version = if is_new { "1.34" } else { "1.33" };
            Reply::Json(format!(r#"{{"cluster":{{"version":"{version}"}}}}"#))
        });
        let (account, mut known) = (aws.account(REGION), KnownCluster::default());
        for (returned, expect) in reads.clone() {
            let api = api(returned, "", "10.2.0.0/16");
            let info = read_cluster_info(&cluster, &api, &account, &mut known).await;
            let info = info.expect("cluster information");
            assert_eq!(info.home.version, expect, "{returned}");
            time::advance(Duration::from_secs(301)).await;
        }
        // EKS is asked only while the versions differ.
        assert_eq!(aws.take_requests().len(), if is_eks { 4 } else { 0 });
    }
}

/// Cluster information is refreshed together with the node classes.
#[tokio::test(start_paused = true)]
async fn cluster_info_is_refreshed_every_five_minutes() {
    let mut schedule = RefreshSchedule::default();
    assert!(schedule.begin_if_due(RefreshTask::Classes));
    schedule.record_result("r", RefreshTask::Classes, Ok(false));
    time::advance(Duration::from_secs(299)).await;
    assert!(!schedule.begin_if_due(RefreshTask::Classes));
    time::advance(Duration::from_secs(1)).await;
    assert!(schedule.begin_if_due(RefreshTask::Classes));
}
