//! Instance profiles of roles: creation, repair, caching and removal. Source: the cases of
//! spec/aws.md §12.10 and §12.11; docs/decisions/018-instance-profiles.md.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time;

use super::canned::{FakeAws, REGION, RecordedRequest, Reply};
use crate::ec2::cleanup_scope::CleanupScope;
use crate::ec2::resolve_node_class::ListResult;
use crate::host::clock;
use crate::model::cluster::Cluster;
use crate::model::node_class::resolved::Cause;
use crate::model::node_class::{NodeClass, NodeIdentity};
use crate::outbound::fence;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::instance_profiles::Profiles;

const OLD: &str = "2026-01-01T00:00:00Z";

/// An instance profile in IAM.
#[derive(Clone, Debug, Default)]
struct StoredProfile {
    path: String,
    roles: Vec<String>,
    created: String,
    /// In the order of the request.
    tags: Vec<String>,
}

/// The part of IAM that instance profiles need.
#[derive(Debug, Default)]
struct Iam {
    profiles: BTreeMap<String, StoredProfile>,
    roles: BTreeSet<String>,
    /// Profiles that are used by instances.
    used: BTreeSet<String>,
    /// An operation that fails, with its error code.
    fails: Option<(&'static str, &'static str)>,
}

fn parameter(request: &RecordedRequest, name: &str) -> String {
    let mut lines = request.body.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_default().to_owned()
}

impl Iam {
    fn show(&self, name: &str) -> String {
        let StoredProfile { path, roles, created, .. } = &self.profiles[name];
        let roles: String = roles
            .iter()
            .map(|role| {
                format!(
                    "<member><Path>/</Path><RoleName>{role}</RoleName><RoleId>r</RoleId>\
                 <Arn>a</Arn>\
                 <CreateDate>{OLD}</CreateDate></member>"
                )
            })
            .collect();
        format!(
            "<Path>{path}</Path><InstanceProfileName>{name}</InstanceProfileName>\
             <InstanceProfileId>p</InstanceProfileId><Arn>a</Arn><CreateDate>{created}\
             </CreateDate><Roles>{roles}</Roles>"
        )
    }

    fn answer(&mut self, request: &RecordedRequest) -> Reply {
        if let Some((operation, code)) = self.fails
            && operation == request.operation
        {
            return Reply::Error(code, "why");
        }
        let name = parameter(request, "InstanceProfileName");
        let role = parameter(request, "RoleName");
        let operation = request.operation.as_str();
        let none = Reply::Error("NoSuchEntity", "no such thing");
        match operation {
            "CreateInstanceProfile" if self.profiles.contains_key(&name) => {
                Reply::Error("EntityAlreadyExists", "it is there")
            }
            "CreateInstanceProfile" => {
                let pairs = request.body.lines().filter(|line| line.starts_with("Tags."));
                let known = StoredProfile {
                    path: parameter(request, "Path"),
                    roles: Vec::new(),
                    created: clock::now().to_string(),
                    tags: pairs
                        .filter_map(|pair| Some(pair.split_once('=')?.1.to_owned()))
                        .collect(),
                };
                self.profiles.insert(name, known);
                result(operation, "")
            }
            "ListInstanceProfiles" => {
                let prefix = parameter(request, "PathPrefix");
                let all = self.profiles.iter();
                let all = all.filter(|(_, profile)| profile.path.starts_with(&prefix));
                let all = all.map(|(name, _)| format!("<member>{}</member>", self.show(name)));
                let all: String = all.collect();
                let all = format!("<InstanceProfiles>{all}</InstanceProfiles>");
                result(operation, &(all + "<IsTruncated>false</IsTruncated>"))
            }
            "DescribeInstances" => {
                let pattern = parameter(request, "Filter.1.Value.1");
                let is_used = self.used.contains(pattern.trim_start_matches("*/"));
                let one = "<item><instancesSet><item><instanceId>i-1</instanceId></item>\
                           </instancesSet></item>";
                let one = if is_used { one } else { "" };
                Reply::Xml(format!("<reservationSet>{one}</reservationSet>"))
            }
            _ if !self.profiles.contains_key(&name) => none,
            "GetInstanceProfile" => {
                let roles = self.show(&name);
                result(operation, &format!("<InstanceProfile>{roles}</InstanceProfile>"))
            }
            "AddRoleToInstanceProfile" if !self.roles.contains(&role) => none,
            "DeleteInstanceProfile" => {
                self.profiles.remove(&name);
                Reply::Xml(String::new())
            }
            _ => {
                if let Some(profile) = self.profiles.get_mut(&name) {
                    match operation {
                        "AddRoleToInstanceProfile" => profile.roles.push(role),
                        _ => profile.roles.retain(|other| *other != role),
                    }
                }
                Reply::Xml(String::new())
            }
        }
    }
}

fn result(operation: &str, inner: &str) -> Reply {
    Reply::Xml(format!("<{operation}Result>{inner}</{operation}Result>"))
}

/// An IAM with these roles.
struct Bench {
    iam: Arc<Mutex<Iam>>,
    aws: FakeAws,
    account: AwsClients,
    profiles: Profiles,
}

impl Bench {
    fn new(roles: &[&str]) -> Self {
        let iam =
            Iam { roles: roles.iter().map(|role| (*role).to_owned()).collect(), ..Iam::default() };
        let iam = Arc::new(Mutex::new(iam));
        let shared = iam.clone();
        let aws = FakeAws::new(move |request| shared.lock().expect("no panic").answer(request));
        let account = aws.account(REGION);
        Self { iam, aws, account, profiles: Profiles::default() }
    }

    async fn profile_for(&mut self, cluster: &Cluster, role: &str) -> ListResult<String> {
        let class = NodeClass {
            identity: Some(NodeIdentity::Role(role.to_owned())),
            ..NodeClass::default()
        };
        let found = self.profiles.profile_for(&self.account, cluster, true, &class);
        fence::run_unfenced(found).await
    }

    fn change(&self, change: impl FnOnce(&mut Iam)) {
        change(&mut self.iam.lock().expect("no panic"));
    }

    fn roles_of(&self, profile: &str) -> Vec<String> {
        let iam = self.iam.lock().expect("no panic");
        iam.profiles[profile].roles.clone()
    }

    fn names(&self) -> Vec<String> {
        let iam = self.iam.lock().expect("no panic");
        iam.profiles.keys().cloned().collect()
    }

    async fn delete_unused(&mut self, clusters: &[Arc<Cluster>]) -> Result<usize, String> {
        let care = CleanupScope::of_all(clusters);
        let removed = self.profiles.delete_unused(&self.account, &care);
        fence::run_unfenced(removed).await.map_err(|fault| fault.to_string())
    }
}

fn cluster(name: &str, roles: &[&str]) -> Cluster {
    Cluster {
        installation: "here".to_owned(),
        name: name.into(),
        region: REGION.to_owned(),
        node_classes: roles
            .iter()
            .map(|role| NodeClass {
                identity: Some(NodeIdentity::Role((*role).to_owned())),
                ..NodeClass::default()
            })
            .collect(),
        ..Cluster::default()
    }
}

/// The roles of the existing profile, the lookup error, and the expected operations.
type LookupCase<'a> = (Option<&'a [&'a str]>, Option<&'static str>, &'a str);

#[tokio::test]
async fn instance_profile_is_created_or_repaired_with_its_role() {
    let rows: [LookupCase<'_>; 5] = [
        (None, None, "GetInstanceProfile CreateInstanceProfile AddRoleToInstanceProfile"),
        (Some(&["node"]), None, "GetInstanceProfile"),
        (Some(&[]), None, "GetInstanceProfile AddRoleToInstanceProfile"),
        (
            Some(&["other"]),
            None,
            "GetInstanceProfile RemoveRoleFromInstanceProfile AddRoleToInstanceProfile",
        ),
        // Another host creates it first.
        (
            Some(&[]),
            Some("NoSuchEntity"),
            "GetInstanceProfile CreateInstanceProfile AddRoleToInstanceProfile",
        ),
    ];
    let one = cluster("one", &[]);
    let mut bench = Bench::new(&["node"]);
    let name = bench.profile_for(&one, "node").await.expect("a profile");
    for (before, fails, expect) in rows {
        let mut bench = Bench::new(&["node", "other"]);
        bench.change(|iam| {
            let known = before.map(|roles| StoredProfile {
                roles: roles.iter().map(|role| (*role).to_owned()).collect(),
                created: OLD.to_owned(),
                ..StoredProfile::default()
            });
            iam.profiles.extend(known.map(|known| (name.clone(), known)));
            iam.fails = fails.map(|code| ("GetInstanceProfile", code));
        });
        assert_eq!(bench.profile_for(&one, "node").await, Ok(name.clone()), "{before:?}");
        assert_eq!(bench.aws.operations(), expect, "{before:?}");
        assert_eq!(bench.roles_of(&name), ["node"], "{before:?}");
    }
}

/// Its path is that of the installation, and its tags are those of the cluster.
#[tokio::test]
async fn instance_profile_path_and_tags_name_its_cluster() {
    let mut bench = Bench::new(&["node"]);
    let name = bench.profile_for(&cluster("one", &[]), "node").await;
    let name = name.expect("a profile");
    let iam = bench.iam.lock().expect("no panic");
    let profile = &iam.profiles[&name];
    assert_eq!(profile.path, "/outrigger/us-west-2/here/");
    let tags = profile.tags.join(" ");
    for (key, value) in [
        ("outrigger.dev/installation", "here"),
        ("outrigger.dev/cluster", "one"),
        ("topology.kubernetes.io/region", "us-west-2"),
        ("kubernetes.io/cluster/one", "owned"),
    ] {
        assert!(tags.contains(&format!("{key} {value}")), "{tags}");
    }
}

/// It is cached for an hour. A failed creation is retried.
#[tokio::test(start_paused = true)]
async fn instance_profile_is_cached_after_success() {
    let one = cluster("one", &[]);
    let mut bench = Bench::new(&["node"]);
    let name = bench.profile_for(&one, "node").await.expect("a profile");
    bench.aws.take_requests();
    for _ in 0..3 {
        assert_eq!(bench.profile_for(&one, "node").await, Ok(name.clone()));
    }
    assert_eq!(bench.aws.operations(), "", "the profile is cached");
    assert!(bench.profile_for(&cluster("two", &[]), "node").await.is_ok());
    assert_ne!(bench.aws.operations(), "", "not for another cluster");
    time::advance(Duration::from_secs(3601)).await;
    assert_eq!(bench.profile_for(&one, "node").await, Ok(name));
    assert_eq!(bench.aws.operations(), "GetInstanceProfile");
    for (code, cause) in [("Throttling", Cause::Unavailable), ("AccessDenied", Cause::Denied)] {
        let mut bench = Bench::new(&["node"]);
        bench.change(|iam| iam.fails = Some(("CreateInstanceProfile", code)));
        let why = bench.profile_for(&one, "node").await.expect_err("an error");
        assert_eq!(why.cause, cause);
        assert!(why.text.contains("iam:CreateInstanceProfile"), "{why:?}");
        bench.change(|iam| iam.fails = None);
        assert!(bench.profile_for(&one, "node").await.is_ok(), "{code}");
    }
}

#[tokio::test]
async fn missing_role_is_reported_and_looked_up_again() {
    let one = cluster("one", &[]);
    let mut bench = Bench::new(&[]);
    let why = bench.profile_for(&one, "node").await.expect_err("an error");
    assert_eq!(why.cause, Cause::RoleNotFound);
    assert!(why.text.contains("IAM role \"node\" does not exist"), "{}", why.text);
    bench.change(|iam| iam.roles.extend(["node".to_owned()]));
    let name = bench.profile_for(&one, "node").await.expect("a profile");
    assert_eq!(bench.roles_of(&name), ["node"]);
}

/// A profile belongs to an installation, cluster, region and role. If the role of a class changes,
/// a different profile is used immediately, and running nodes keep theirs.
#[tokio::test]
async fn each_role_has_a_separate_instance_profile() {
    let mut bench = Bench::new(&["a", "b"]);
    let one = cluster("one", &["a", "a", "b"]);
    let first = bench.profile_for(&one, "a").await.expect("a profile");
    assert_eq!(bench.profile_for(&one, "a").await, Ok(first.clone()), "a different class");
    // A path in front of the role name is only its location.
    let with_path = bench.profile_for(&one, "teams/blue/a").await.expect("a profile");
    assert_eq!(bench.roles_of(&with_path), ["a"]);
    let mut names = BTreeSet::from([first.clone()]);
    let installation = Cluster { installation: "there".to_owned(), ..one.clone() };
    let region = Cluster { region: "eu-west-1".to_owned(), ..one.clone() };
    for (cluster, role) in [
        (&one, "b"),
        (&cluster("two", &[]), "a"),
        (&installation, "a"),
        (&region, "a"),
        (&cluster(&"x".repeat(200), &[]), "a"),
        (&cluster("ünïcode name", &[]), "a"),
    ] {
        let name = bench.profile_for(cluster, role).await.expect("a profile");
        assert!(
            name.len() <= 128
                && name
                    .chars()
                    .all(|letter| letter.is_ascii_alphanumeric() || "+=,.@-_".contains(letter)),
            "{name}"
        );
        assert_eq!(bench.roles_of(&name), [role]);
        assert!(names.insert(name), "{role}");
    }
    // Switching back and forth creates nothing again.
    bench.aws.take_requests();
    for role in ["b", "a", "b", "a"] {
        assert!(bench.profile_for(&one, role).await.is_ok());
    }
    assert_eq!(bench.aws.operations(), "");
    assert_eq!(bench.roles_of(&first), ["a"]);
}

/// A profile: name, path, roles, creation time, whether instances use it, and whether it is
/// removed.
type ProfileRow<'a> = (&'a str, &'a str, &'a [&'a str], &'a str, bool, bool);

#[tokio::test]
async fn unused_instance_profiles_are_removed() {
    let path = "/outrigger/us-west-2/here/";
    let young = clock::now().to_string();
    let rows: [ProfileRow<'_>; 8] = [
        ("outrigger-gone-1", path, &["a"], OLD, false, true),
        ("outrigger-gone-2", path, &[], OLD, false, true),
        ("outrigger-gone-3", path, &["a", "b"], OLD, false, true),
        ("outrigger-gone-4", path, &["a"], &young, false, false),
        ("outrigger-gone-5", path, &["a"], OLD, true, false),
        ("of-no-cluster", path, &["a"], OLD, false, false),
        ("outrigger-gone-6", "/outrigger/eu-west-1/here/", &["a"], OLD, false, false),
        ("others", "/karpenter/us-west-2/", &["a"], OLD, false, false),
    ];
    let mut bench = Bench::new(&["a", "b"]);
    let one = Arc::new(cluster("one", &["a"]));
    let two = Arc::new(cluster("two", &["b"]));
    let mut kept = vec![bench.profile_for(&one, "a").await.expect("a profile")];
    kept.push(bench.profile_for(&two, "b").await.expect("a profile"));
    bench.change(|iam| {
        for profile in iam.profiles.values_mut() {
            profile.created = OLD.to_owned();
        }
        for (name, path, roles, created, used, removed) in rows {
            let known = StoredProfile {
                path: path.to_owned(),
                roles: roles.iter().map(|role| (*role).to_owned()).collect(),
                created: created.to_owned(),
                tags: Vec::new(),
            };
            iam.profiles.insert(name.to_owned(), known);
            if used {
                iam.used.insert(name.to_owned());
            }
            if !removed {
                kept.push(name.to_owned());
            }
        }
    });
    kept.sort();
    // A failed removal is reported and retried.
    bench.change(|iam| iam.fails = Some(("DeleteInstanceProfile", "ServiceFailure")));
    let why = bench.delete_unused(&[one.clone(), two.clone()]).await;
    assert!(why.expect_err("a fault").contains("ServiceFailure"));
    bench.change(|iam| iam.fails = None);
    assert_eq!(bench.delete_unused(&[one.clone(), two.clone()]).await, Ok(3));
    assert_eq!(bench.names(), kept);
    assert_eq!(bench.delete_unused(&[one.clone(), two.clone()]).await, Ok(0));
    // The profile of a role that no class uses is removed once no instance uses it, and its cache
    // entry is removed with it.
    assert_eq!(bench.delete_unused(std::slice::from_ref(&one)).await, Ok(1));
    bench.aws.take_requests();
    assert!(bench.profile_for(&two, "b").await.is_ok());
    let made = "GetInstanceProfile CreateInstanceProfile AddRoleToInstanceProfile";
    assert_eq!(bench.aws.operations(), made);
    // A profile that is already deleted counts as removed.
    bench.change(|iam| {
        iam.used.clear();
        iam.fails = Some(("DeleteInstanceProfile", "NoSuchEntity"));
    });
    assert_eq!(bench.delete_unused(&[one]).await, Ok(1));
    // If all classes name profiles, there are none to list.
    bench.aws.take_requests();
    let none = Arc::new(cluster("three", &[]));
    assert_eq!(bench.delete_unused(&[none]).await, Ok(0));
    assert_eq!(bench.aws.operations(), "");
}
