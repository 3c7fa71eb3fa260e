//! The conformance checks. Each uses its own claims, so that one provider can run all of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use jiff::{SignedDuration, Timestamp};
use tokio::time::sleep;

use crate::engine::command::Command;
use crate::host::clock;
use crate::model::claim::{ClaimOrigin, ClaimRecord};
use crate::model::id::{ClaimId, InstanceId};
use crate::model::instance::{Instance, OfferingKey};
use crate::model::labels::{Labels, TAINT_UNREGISTERED};
use crate::model::taint::{Effect, Taint};
use crate::outbound::fence;
use crate::provider::{CommandResult, FailureKind, Launch, RefusalKind};
use crate::providers::interface::Provider;

/// A provider to check, with the offerings that it has.
pub(crate) struct Subject<'a> {
    /// Returns the provider of an installation and cluster. All of them use the same cloud.
    pub(crate) open: &'a (dyn Fn(&str, &str) -> Arc<dyn Provider> + Sync),
    /// Two available offerings of one capacity type.
    pub(crate) sold: [OfferingKey; 2],
    /// An unavailable offering of the same capacity type.
    pub(crate) sold_out: OfferingKey,
    /// An offering of the same capacity type that does not exist.
    pub(crate) unknown: OfferingKey,
    /// The ID of an instance that never existed.
    pub(crate) unknown_instance: InstanceId,
    /// Hash of the node class `default`, as claims carry it.
    pub(crate) node_class_hash: String,
    /// Maximum lag of a listing.
    pub(crate) lag: Duration,
    /// Whether the provider rejects termination of another cluster's instance. Engines never
    /// request that, and permissions of the cloud may prevent it instead.
    pub(crate) guards_terminations: bool,
}

const INSTALLATION: &str = "conformance";
const CLUSTER: &str = "prod";
/// Polling interval of a lagging listing.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Runs all checks on a provider.
pub(crate) async fn check(subject: &Subject<'_>) {
    type Check<'a> = for<'b> fn(&'b Bench<'a>) -> BoxFuture<'b, ()>;
    let checks: [(&str, Check<'_>); 9] = [
        ("once", |it| Box::pin(claim_gets_one_instance(it))),
        ("other", |it| Box::pin(token_is_for_one_launch(it))),
        ("tags", |it| Box::pin(tags_round_trip(it))),
        ("twice", |it| Box::pin(second_termination_is_harmless(it))),
        ("ended", |it| Box::pin(terminated_claim_gets_no_instance(it))),
        ("short", |it| Box::pin(unavailable_offering_is_refused(it))),
        ("unknown", |it| Box::pin(unknown_offering_is_refused(it))),
        ("foreign", |it| Box::pin(foreign_instances_are_untouched(it))),
        ("nonsense", |it| Box::pin(unsupported_command_is_invalid(it))),
    ];
    for (name, check) in checks {
        let bench = Bench {
            subject,
            provider: (subject.open)(INSTALLATION, CLUSTER),
            // Makes names unique, because a persistent cloud may be checked several times.
            run: format!("{name}-{:x}", clock::random_seed()),
        };
        println!("{name}");
        check(&bench).await;
    }
}

/// A provider and the name of the current check.
struct Bench<'a> {
    subject: &'a Subject<'a>,
    provider: Arc<dyn Provider>,
    run: String,
}

impl Bench<'_> {
    /// A launch as engines create it, with tags of maximum length and unusual characters.
    fn launch_of(&self, claim: &str, offerings: &[&OfferingKey]) -> Launch {
        let claim = ClaimRecord {
            id: ClaimId(format!("{}-{claim}", self.run)),
            installation: INSTALLATION.to_owned(),
            cluster: CLUSTER.into(),
            origin: ClaimOrigin::default(),
            pool: "general".into(),
            node_class: Some("default".into()),
            created: Timestamp::from_second(1_800_000_000).expect("in range"),
            expire_after: Some(SignedDuration::from_hours(720)),
            expire_hard_after: None,
            termination_grace_period: None,
            pool_hash: "v1:1".to_owned(),
            node_class_hash: self.subject.node_class_hash.clone(),
            startup_taints: vec![Taint::new("a.b/c", Effect::NoSchedule)],
            reason: repeat_text("why not = a/b_c.d:e@f+g-h "),
            command_id: "1".to_owned(),
        };
        let mut tags = claim.to_tags();
        tags.insert("Kostenstelle für äöü".to_owned(), repeat_text("ß漢字кг"));
        tags.insert("empty".to_owned(), String::new());
        Launch {
            claim,
            offerings: offerings.iter().map(|key| (*key).clone()).collect(),
            labels: Labels::from([("karpenter.sh/nodepool".to_owned(), "general".to_owned())]),
            taints: vec![Taint::new(TAINT_UNREGISTERED, Effect::NoExecute)],
            tags,
            devices: BTreeSet::new(),
            overlaid: false,
            relaxed: false,
            varied: false,
        }
    }

    async fn launch(&self, launch: &Launch) -> CommandResult {
        let launch = Box::new(launch.clone());
        fence::run_unfenced(self.provider.execute(Command::Launch(launch))).await
    }

    async fn launched(&self, launch: &Launch) -> Instance {
        match self.launch(launch).await {
            CommandResult::Launched(instance) => instance,
            other => panic!("{launch:?} returns {other:?}"),
        }
    }

    async fn terminate(
        &self,
        provider: &Arc<dyn Provider>,
        instance: &InstanceId,
    ) -> CommandResult {
        let command =
            Command::Terminate { claim: "for-the-log".into(), instance: instance.clone() };
        fence::run_unfenced(provider.execute(command)).await
    }

    /// Terminates an instance that the provider may not know yet.
    async fn terminate_young(&self, instance: &InstanceId) -> CommandResult {
        let began = clock::monotonic_now();
        loop {
            let answer = self.terminate(&self.provider, instance).await;
            if failed(&answer) != Some(FailureKind::Gone) || began.elapsed() >= self.subject.lag {
                return answer;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Terminates an instance for cleanup.
    async fn clean_up(&self, instance: &Instance) {
        let answer = self.terminate_young(&instance.id).await;
        assert!(matches!(answer, CommandResult::Terminating(_)), "{answer:?}");
    }

    async fn list(&self) -> Vec<Instance> {
        listed(&self.provider).await
    }

    /// Polls the listings until the instance is as expected.
    async fn wait_for(
        &self,
        id: &InstanceId,
        what: &str,
        wanted: impl Fn(Option<&Instance>) -> bool,
    ) -> Option<Instance> {
        let began = clock::monotonic_now();
        loop {
            let all = self.list().await;
            let found = all.into_iter().find(|it| it.id == *id);
            if wanted(found.as_ref()) {
                return found;
            }
            let lag = self.subject.lag;
            assert!(began.elapsed() < lag, "{id} {what}: not within {lag:?}");
            sleep(POLL_INTERVAL).await;
        }
    }

    /// All instances of a claim in the listings.
    async fn of_claim(&self, launch: &Launch) -> BTreeSet<InstanceId> {
        sleep(self.subject.lag.min(Duration::from_secs(3))).await;
        let mut all = self.list().await;
        all.retain(|it| it.tags.get("outrigger.dev/claim") == Some(&launch.claim.id.0));
        all.into_iter().map(|it| it.id).collect()
    }
}

async fn listed(provider: &Arc<dyn Provider>) -> Vec<Instance> {
    match provider.execute(Command::ListInstances).await {
        CommandResult::Instances(all) => all,
        other => panic!("a listing returns {other:?}"),
    }
}

fn is_live(instance: Option<&Instance>) -> bool {
    instance.is_some_and(|instance| instance.state.is_live())
}

/// The text, repeated to the maximum length of a tag value.
fn repeat_text(text: &str) -> String {
    text.chars().cycle().take(256).collect()
}

fn failed(answer: &CommandResult) -> Option<FailureKind> {
    match answer {
        CommandResult::Failed { kind, .. } => Some(*kind),
        _ => None,
    }
}

async fn claim_gets_one_instance(bench: &Bench<'_>) {
    let [sold, other] = &bench.subject.sold;
    let launch = bench.launch_of("a", &[sold, other]);
    let many = (0..5).map(|_| bench.launched(&launch));
    let instances = join_all(many).await;
    let first = &instances[0];
    assert!(launch.offerings.contains(&first.offering), "{first:?}");
    assert!(first.state.is_live(), "{first:?}");
    for again in instances.iter().chain([&bench.launched(&launch).await]) {
        assert_eq!(again.id, first.id, "a claim has two instances");
        assert_eq!(again.offering, first.offering);
    }
    let seen = bench.wait_for(&first.id, "is listed", |it| it.is_some()).await;
    let seen = seen.expect("it is listed");
    assert_eq!(seen.offering, first.offering);
    // The response to the launch contains the same Node as the listings.
    assert!(first.node.is_none() || seen.node == first.node, "{seen:?}");
    assert_eq!(bench.of_claim(&launch).await, [first.id.clone()].into());
    let elsewhere = bench.launched(&bench.launch_of("b", &[sold])).await;
    assert_ne!(elsewhere.id, first.id, "two claims have one instance");
    bench.clean_up(&elsewhere).await;
    bench.clean_up(first).await;
}

async fn token_is_for_one_launch(bench: &Bench<'_>) {
    let [sold, other] = &bench.subject.sold;
    let launch = bench.launch_of("a", &[sold]);
    let instance = bench.launched(&launch).await;
    let answer = bench.launch(&bench.launch_of("a", &[other])).await;
    assert_eq!(failed(&answer), Some(FailureKind::Invalid), "{answer:?}");
    assert_eq!(bench.of_claim(&launch).await, [instance.id.clone()].into());
    bench.clean_up(&instance).await;
}

async fn tags_round_trip(bench: &Bench<'_>) {
    let launch = bench.launch_of("a", &[&bench.subject.sold[0]]);
    let instance = bench.launched(&launch).await;
    let seen = bench.wait_for(&instance.id, "is listed", |it| it.is_some());
    let seen = seen.await.expect("it is listed");
    for (reported, whose) in [(&instance, "the response"), (&seen, "the listing")] {
        for (key, value) in &launch.tags {
            assert_eq!(reported.tags.get(key), Some(value), "{key} in {whose}");
        }
        let claim = ClaimRecord::from_tags(&reported.tags, INSTALLATION, &CLUSTER.into());
        assert_eq!(claim, Ok(launch.claim.clone()), "{whose}");
    }
    bench.clean_up(&instance).await;
}

async fn second_termination_is_harmless(bench: &Bench<'_>) {
    let sold = &bench.subject.sold[0];
    let instance = bench.launched(&bench.launch_of("a", &[sold])).await;
    let other = bench.launched(&bench.launch_of("b", &[sold])).await;
    for again in 0..3 {
        let answer = match again {
            0 => bench.terminate_young(&instance.id).await,
            _ => bench.terminate(&bench.provider, &instance.id).await,
        };
        let gone = again > 0 && failed(&answer) == Some(FailureKind::Gone);
        let ends = matches!(&answer, CommandResult::Terminating(state) if !state.is_live());
        assert!(gone || ends, "{answer:?}");
    }
    bench.wait_for(&instance.id, "has ended", |it| it.is_none_or(|it| !it.state.is_live())).await;
    bench.wait_for(&other.id, "lives", |it| it.is_some_and(|it| it.state.is_live())).await;
    bench.clean_up(&other).await;
    let answer = bench.terminate(&bench.provider, &bench.subject.unknown_instance).await;
    assert_eq!(failed(&answer), Some(FailureKind::Gone), "{answer:?}");
}

async fn terminated_claim_gets_no_instance(bench: &Bench<'_>) {
    let launch = bench.launch_of("a", &[&bench.subject.sold[0]]);
    let instance = bench.launched(&launch).await;
    bench.clean_up(&instance).await;
    bench.wait_for(&instance.id, "has ended", |it| it.is_none_or(|it| !it.state.is_live())).await;
    let answer = bench.launch(&launch).await;
    assert_eq!(failed(&answer), Some(FailureKind::Invalid), "{answer:?}");
    let mut all = bench.of_claim(&launch).await;
    all.remove(&instance.id);
    assert_eq!(all, BTreeSet::new(), "a claim has two instances");
}

async fn unavailable_offering_is_refused(bench: &Bench<'_>) {
    let Subject { sold, sold_out, .. } = bench.subject;
    let launch = bench.launch_of("a", &[sold_out]);
    assert_refused(&bench.launch(&launch).await, sold_out, RefusalKind::InsufficientCapacity);
    assert_eq!(bench.of_claim(&launch).await, BTreeSet::new());
    let instance = bench.launched(&bench.launch_of("b", &[sold_out, &sold[0]])).await;
    assert_eq!(instance.offering, sold[0]);
    bench.clean_up(&instance).await;
}

async fn unknown_offering_is_refused(bench: &Bench<'_>) {
    let Subject { sold, unknown, .. } = bench.subject;
    let answer = bench.launch(&bench.launch_of("a", &[unknown])).await;
    assert_refused(&answer, unknown, RefusalKind::Unsupported);
    let instance = bench.launched(&bench.launch_of("b", &[unknown, &sold[0]])).await;
    assert_eq!(instance.offering, sold[0]);
    bench.clean_up(&instance).await;
}

fn assert_refused(answer: &CommandResult, offering: &OfferingKey, kind: RefusalKind) {
    match answer {
        CommandResult::LaunchRefused(refusals) => {
            let of = refusals.iter().map(|it| (&it.offering, it.kind));
            assert_eq!(of.collect::<Vec<_>>(), [(offering, kind)]);
        }
        other => panic!("{offering} returns {other:?}"),
    }
}

async fn foreign_instances_are_untouched(bench: &Bench<'_>) {
    let instance = bench.launched(&bench.launch_of("a", &[&bench.subject.sold[0]])).await;
    bench.wait_for(&instance.id, "lives", is_live).await;
    for (installation, cluster) in [(INSTALLATION, "other"), ("other", CLUSTER), ("other", "other")]
    {
        let other = (bench.subject.open)(installation, cluster);
        let seen = listed(&other).await;
        assert_eq!(seen, [], "{installation} {cluster} lists instances of others");
        if bench.subject.guards_terminations {
            let answer = bench.terminate(&other, &instance.id).await;
            let kind = failed(&answer);
            let denied = [Some(FailureKind::Denied), Some(FailureKind::Gone)];
            assert!(denied.contains(&kind), "{installation} {cluster}: {answer:?}");
        }
    }
    bench.wait_for(&instance.id, "still lives", is_live).await;
    bench.clean_up(&instance).await;
}

async fn unsupported_command_is_invalid(bench: &Bench<'_>) {
    let command = Command::DeleteNode { node: "n".into(), uid: "u".to_owned() };
    let answer = fence::run_unfenced(bench.provider.execute(command)).await;
    assert_eq!(failed(&answer), Some(FailureKind::Invalid), "{answer:?}");
    let answer = bench.launch(&bench.launch_of("a", &[])).await;
    assert_eq!(failed(&answer), Some(FailureKind::Invalid), "{answer:?}");
}
