//! Launches that are gathered into calls, and calls whose response is lost.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::canned::{FakeAws, REGION, RecordedRequest, Reply};
use super::faults;
use crate::ec2::create_fleet::FleetRequest;
use crate::host::clock;
use crate::model::claim::{
    ClaimRecord, TAG_BATCH, TAG_CLAIM, TAG_CLUSTER, TAG_INSTALLATION, claim_id,
};
use crate::model::cluster::Cluster;
use crate::model::id::ClaimId;
use crate::model::instance::Instance;
use crate::model::labels::Labels;
use crate::outbound::fence;
use crate::provider::{CommandResult, FailureKind, Launch};
use crate::providers::aws::launcher::{LaunchRecord, Launcher};
use crate::providers::aws::region_task::RegionState;

/// A call that EC2 has received.
struct Fleet {
    token: String,
    count: usize,
    tags: Labels,
    at: Instant,
    instances: Vec<String>,
}

/// What EC2 does with calls.
#[derive(Default)]
struct Ec2 {
    fleets: Vec<Fleet>,
    /// The number of instances that can still be launched. `None` has no limit.
    capacity: Option<usize>,
    /// How many of the next responses are lost, after which time, and whether their calls are
    /// carried out.
    lost: usize,
    lost_after: Duration,
    carries_out: bool,
    /// Whether a used token returns its instances.
    replays: bool,
    /// How long listings lack new instances.
    hides: Duration,
    /// The error of all calls.
    error: Option<&'static str>,
    launched: usize,
}

fn value<'a>(request: &'a RecordedRequest, name: &str) -> Option<&'a str> {
    request.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

fn tags_of(request: &RecordedRequest) -> Labels {
    let tag = |index: usize| {
        let key = value(request, &format!("TagSpecification.1.Tag.{index}.Key"))?;
        let tag = value(request, &format!("TagSpecification.1.Tag.{index}.Value"))?;
        Some((key.to_owned(), tag.to_owned()))
    };
    (1..).map_while(tag).collect()
}

impl Ec2 {
    fn create_fleet(&mut self, request: &RecordedRequest) -> Reply {
        if let Some(code) = self.error {
            return Reply::Error(code, "why");
        }
        let is_lost = self.lost > 0;
        self.lost = self.lost.saturating_sub(1);
        let token = value(request, "ClientToken").expect("a token").to_owned();
        if is_lost && !self.carries_out {
            return Reply::NoResponse(self.lost_after);
        }
        let known = self.fleets.iter().position(|fleet| fleet.token == token);
        let index = known.unwrap_or_else(|| {
            let count = value(request, "TargetCapacitySpecification.TotalTargetCapacity");
            let count: usize = count.and_then(|count| count.parse().ok()).expect("a number");
            let some = count.min(self.capacity.unwrap_or(count));
            self.capacity = self.capacity.map(|left| left - some);
            let instances = (0..some).map(|index| format!("i-{}", self.launched + index)).collect();
            self.launched += some;
            let (tags, at) = (tags_of(request), clock::monotonic_now());
            self.fleets.push(Fleet { token, count, tags, at, instances });
            self.fleets.len() - 1
        });
        if is_lost {
            return Reply::NoResponse(self.lost_after);
        }
        let fleet = &self.fleets[index];
        let shown = known.is_none() || self.replays;
        let ids = fleet.instances.iter().filter(|_| shown);
        let ids: String = ids.map(|id| format!("<item>{id}</item>")).collect();
        let missing = (fleet.instances.len() < fleet.count).then_some(
            "<item><errorCode>InsufficientInstanceCapacity</errorCode><launchTemplateAndOverrides>\
             <overrides><instanceType>m5.large</instanceType></overrides>\
             </launchTemplateAndOverrides></item>",
        );
        Reply::Xml(format!(
            "<fleetId>fleet-{index}</fleetId><errorSet>{}</errorSet><fleetInstanceSet><item>\
             <instanceIds>{ids}</instanceIds><instanceType>m5.large</instanceType></item>\
             </fleetInstanceSet>",
            missing.unwrap_or_default()
        ))
    }

    fn describe_instances(&self, request: &RecordedRequest) -> Reply {
        let tag = value(request, "Filter.1.Name").and_then(|name| name.strip_prefix("tag:"));
        let wanted = value(request, "Filter.1.Value.1").expect("a value");
        let fleets = self.fleets.iter().enumerate().filter(|(_, fleet)| {
            let has_tag = tag.is_none_or(|tag| fleet.tags.get(tag).is_some_and(|is| is == wanted));
            has_tag && fleet.at.elapsed() >= self.hides
        });
        let mut items = String::new();
        for (index, fleet) in fleets {
            let mut tags = fleet.tags.clone();
            tags.insert("aws:ec2:fleet-id".to_owned(), format!("fleet-{index}"));
            let tag = |(key, value)| format!("<item><key>{key}</key><value>{value}</value></item>");
            let tags: String = tags.iter().map(tag).collect();
            for id in &fleet.instances {
                items += &format!(
                    "<item><instanceId>{id}</instanceId><instanceType>m5.large</instanceType>\
                     <placement><availabilityZone>us-west-2a</availabilityZone></placement>\
                     <instanceState><name>running</name></instanceState><tagSet>{tags}</tagSet>\
                     </item>"
                );
            }
        }
        let set = format!("<item><instancesSet>{items}</instancesSet></item>");
        Reply::Xml(format!("<reservationSet>{set}</reservationSet>"))
    }
}

struct Stage {
    ec2: Arc<Mutex<Ec2>>,
    launcher: Arc<Launcher>,
}

impl Stage {
    fn new(ec2: Ec2) -> Self {
        let ec2 = Arc::new(Mutex::new(ec2));
        let shared = ec2.clone();
        let aws = FakeAws::new(move |request| {
            let mut ec2 = shared.lock().expect("no panic");
            match request.operation.as_str() {
                "CreateFleet" => ec2.create_fleet(request),
                "DescribeInstances" => ec2.describe_instances(request),
                _ => Reply::Xml(String::new()),
            }
        });
        let account = Arc::new(aws.account(REGION));
        let region = Arc::new(RegionState::new(account, Arc::default(), Arc::default()));
        let cluster =
            Cluster { installation: "tests".into(), name: "one".into(), ..Cluster::default() };
        Self { ec2, launcher: Arc::new(Launcher::new(Arc::new(cluster), region, false)) }
    }

    /// Sends the launch of a claim as the engine does. A launch without response is repeated.
    async fn launch(&self, claim: &str, group: &str) -> (usize, CommandResult) {
        let (launch, request) = launch_of(claim, group);
        for attempt in 1..10 {
            let launcher = &self.launcher;
            let (batch, is_repeat) = match launcher.known_launch(&launch).expect("no other launch")
            {
                Some(LaunchRecord::Made(instance)) => {
                    return (attempt, CommandResult::Launched(*instance));
                }
                Some(LaunchRecord::Refused) => {
                    return (attempt, CommandResult::LaunchRefused(Vec::new()));
                }
                Some(LaunchRecord::Batched(batch)) => (batch, true),
                None => {
                    let batch = launcher.join_batch(launch.clone(), request.clone());
                    (batch.expect("it is fenced"), false)
                }
            };
            let id = &launch.claim.id;
            let result = launcher.wait_for_result(id, batch, is_repeat).await;
            if result.failure() != Some(FailureKind::Unknown) {
                return (attempt, result);
            }
            sleep(Duration::from_millis(500)).await;
        }
        panic!("no result after ten attempts");
    }

    /// Launches claims together; returns their results in order.
    async fn launch_all(self: &Arc<Self>, claims: &[(String, &'static str)]) -> Vec<CommandResult> {
        let mut tasks = JoinSet::new();
        for (index, (claim, group)) in claims.iter().cloned().enumerate() {
            let stage = self.clone();
            tasks.spawn(fence::run_unfenced(async move {
                (index, stage.launch(&claim, group).await.1)
            }));
        }
        let mut results = tasks.join_all().await;
        results.sort_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    fn counts(&self) -> Vec<usize> {
        self.ec2.lock().expect("no panic").fleets.iter().map(|fleet| fleet.count).collect()
    }
}

/// A launch of a claim. Launches of one group have the same request.
fn launch_of(claim: &str, group: &str) -> (Launch, FleetRequest) {
    let mut request = faults::request();
    request.context = Some(group.to_owned());
    let claim = ClaimRecord {
        id: claim.into(),
        installation: "tests".into(),
        cluster: "one".into(),
        ..ClaimRecord::default()
    };
    request.tags = claim.to_tags();
    let launch = Launch {
        tags: claim.to_tags(),
        claim,
        offerings: Vec::new(),
        labels: Labels::new(),
        taints: Vec::new(),
        devices: BTreeSet::new(),
        overlaid: false,
        varied: false,
        relaxed: false,
    };
    (launch, request)
}

fn claims(count: usize, group: &'static str) -> Vec<(String, &'static str)> {
    (0..count).map(|index| (format!("{group}-{index}"), group)).collect()
}

fn launched(results: &[CommandResult]) -> Vec<&Instance> {
    fn instance(result: &CommandResult) -> Option<&Instance> {
        match result {
            CommandResult::Launched(instance) => Some(instance),
            _ => None,
        }
    }
    results.iter().filter_map(instance).collect()
}

/// Checks that all instances differ, and so do the ids of their claims.
fn assert_distinct(instances: &[&Instance]) {
    let ids: BTreeSet<_> = instances.iter().map(|instance| &instance.id).collect();
    assert_eq!(ids.len(), instances.len());
    let names = instances.iter().map(|it| claim_id(&it.tags, &it.id).expect("a claim"));
    assert_eq!(names.collect::<BTreeSet<ClaimId>>().len(), instances.len());
    for instance in instances {
        assert_eq!(instance.tags[TAG_INSTALLATION], "tests");
        assert_eq!(instance.tags[TAG_CLUSTER], "one");
    }
}

#[tokio::test(start_paused = true)]
async fn equal_launches_are_gathered_into_calls_for_at_most_one_hundred() {
    let stage = Arc::new(Stage::new(Ec2::default()));
    let all = [claims(250, "a"), claims(3, "b"), claims(1, "c")].concat();
    let results = stage.launch_all(&all).await;
    assert_distinct(&launched(&results));
    assert_eq!(launched(&results).len(), 254);
    let mut counts = stage.counts();
    counts.sort_unstable();
    assert_eq!(counts, [1, 3, 50, 100, 100]);
    // Only an instance that was launched alone has the tag of its claim.
    for (result, (claim, group)) in results.iter().zip(&all) {
        let CommandResult::Launched(instance) = result else {
            panic!("{result:?}");
        };
        let own = instance.tags.get(TAG_CLAIM) == Some(claim);
        assert_eq!((own, instance.tags.contains_key(TAG_BATCH)), (*group == "c", *group != "c"));
    }
    // A repeated launch returns the same instance.
    let again = stage.launch_all(&all).await;
    assert_eq!(again, results);
    assert_eq!(stage.counts().len(), 5);
}

/// Launches that wait for the rate limit gather, however many clusters and pools launch.
#[tokio::test(start_paused = true)]
async fn batch_accepts_launches_while_it_waits_for_the_rate_limit() {
    let stage = Arc::new(Stage::new(Ec2::default()));
    let groups = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let first: Vec<_> = groups.iter().flat_map(|group| claims(1, group)).collect();
    let second = groups.iter().flat_map(|group| claims(20, group).split_off(1)).collect::<Vec<_>>();
    let late = stage.clone();
    let more = tokio::spawn(async move {
        sleep(Duration::from_millis(100)).await;
        late.launch_all(&second).await
    });
    let mut results = stage.launch_all(&first).await;
    results.extend(more.await.expect("no panic"));
    assert_eq!(launched(&results).len(), 160);
    assert_distinct(&launched(&results));
    // Five calls are sent at once, and the other three gather the later launches.
    let mut counts = stage.counts();
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 1, 1, 1, 19, 19, 19, 19, 19, 20, 20, 20]);
}

#[tokio::test(start_paused = true)]
async fn launches_that_a_call_does_not_fulfil_are_refused() {
    let stage = Arc::new(Stage::new(Ec2 { capacity: Some(3), ..Ec2::default() }));
    let results = stage.launch_all(&claims(5, "a")).await;
    assert_distinct(&launched(&results));
    assert_eq!(launched(&results).len(), 3);
    let refused = |it: &&CommandResult| match it {
        CommandResult::LaunchRefused(refusals) => refusals.len() == 2,
        _ => false,
    };
    assert_eq!(results.iter().filter(refused).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn failed_call_fails_each_of_its_launches() {
    for (code, kind) in [
        ("RequestLimitExceeded", FailureKind::Throttled),
        ("UnauthorizedOperation", FailureKind::Denied),
        ("InvalidParameterValue", FailureKind::Invalid),
    ] {
        let stage = Arc::new(Stage::new(Ec2 { error: Some(code), ..Ec2::default() }));
        let results = stage.launch_all(&claims(5, "a")).await;
        assert!(results.iter().all(|result| result.failure() == Some(kind)), "{results:?}");
        // The claims may be launched again, with another token.
        stage.ec2.lock().expect("no panic").error = None;
        let results = stage.launch_all(&claims(5, "a")).await;
        assert_eq!(launched(&results).len(), 5, "{code}");
    }
}

/// A response is lost: each claim gets one instance, whether or not EC2 has carried out the call,
/// shows its instances late, or returns them for a used token.
#[tokio::test(start_paused = true)]
async fn launches_of_a_lost_call_get_its_instances() {
    for count in [1, 5] {
        for (carries_out, replays, hides) in [
            (false, true, 0),
            (true, true, 0),
            (true, true, 40),
            (true, false, 0),
            (true, false, 40),
        ] {
            let hides = Duration::from_secs(hides);
            let ec2 = Ec2 { lost: 1, carries_out, replays, hides, ..Ec2::default() };
            let stage = Arc::new(Stage::new(ec2));
            let began = clock::monotonic_now();
            let results = stage.launch_all(&claims(count, "a")).await;
            assert_distinct(&launched(&results));
            assert_eq!(launched(&results).len(), count, "{carries_out} {replays} {hides:?}");
            assert_eq!(stage.ec2.lock().expect("no panic").launched, count);
            assert!(began.elapsed() < Duration::from_secs(80), "{:?}", began.elapsed());
        }
    }
}

/// A call that takes until its timeout may be carried out at its end: its instances may be listed
/// up to a minute later.
#[tokio::test(start_paused = true)]
async fn lookups_after_a_slow_call_last_a_minute() {
    let times = (Duration::from_secs(55), Duration::from_secs(100));
    let ec2 = Ec2 { lost: 2, carries_out: true, ..Ec2::default() };
    let stage = Arc::new(Stage::new(Ec2 { lost_after: times.0, hides: times.1, ..ec2 }));
    let results = stage.launch_all(&claims(5, "a")).await;
    assert_distinct(&launched(&results));
    assert_eq!((launched(&results).len(), stage.counts().len()), (5, 1));
}

/// Every response is lost, and the call was never carried out: after a minute it is certain that
/// no instance exists, and the pods are planned again.
#[tokio::test(start_paused = true)]
async fn launches_of_a_call_that_was_not_carried_out_are_refused_after_a_minute() {
    let stage = Arc::new(Stage::new(Ec2 { lost: 100, ..Ec2::default() }));
    let began = clock::monotonic_now();
    let results = stage.launch_all(&claims(3, "a")).await;
    let expected = CommandResult::LaunchRefused(Vec::new());
    assert!(results.iter().all(|result| *result == expected), "{results:?}");
    let waited = began.elapsed().as_secs();
    assert!((60..75).contains(&waited), "{waited} s");
}

/// Some instances of a lost call exist: the others are refused, and none is launched twice.
#[tokio::test(start_paused = true)]
async fn lost_call_that_was_carried_out_in_part_is_not_repeated() {
    let ec2 = Ec2 { lost: 1, carries_out: true, capacity: Some(2), ..Ec2::default() };
    let stage = Arc::new(Stage::new(ec2));
    let results = stage.launch_all(&claims(5, "a")).await;
    assert_distinct(&launched(&results));
    assert_eq!((launched(&results).len(), stage.counts().len()), (2, 1));
}
