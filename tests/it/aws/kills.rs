//! `kill -9` of the daemon during a launch, a launch template call or a termination: before EC2
//! receives the request, before the response arrives, and right after it.
//!
//! Each run interrupts one call at an exact point. Several daemons run in parallel, each with its
//! own installation. The AWS faults of each kill derive from one seed.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_ec2::types::{ResourceType, Tag, TagSpecification};
use fastrand::Rng;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::cases::ground;
use super::kubelets::{Kubelets, Sizes};
use super::proxy::Bench;
use super::test_host::{Held, Lane, Site, TYPE, distinct, release};
use super::{Aws, variable};
use crate::plane::fixture::{clock, is_campaign};
use crate::plane::term_order::{assert_terms, called};

/// Pods of a group whose launches are interrupted together.
const LAUNCHES: usize = 5;
/// The number of parallel daemons, and of runs of each kind: in a campaign, and otherwise.
const LANES: (usize, usize) = (6, 3);
const RUNS: (usize, usize) = (100, 1);
/// The order of kills. Launch templates are created one by one, so they need most of the kills. The
/// launched instances are terminated at the end.
const TURNS: [Act; 7] = [
    Act::Template,
    Act::Launch,
    Act::Template,
    Act::Template,
    Act::Template,
    Act::Template,
    Act::End,
];
/// The maximum delay of a call whose daemon was killed. It is longer than the next daemon needs for
/// its first decision.
const LATE_MS: u64 = 15_000;
/// The time limit in seconds for convergence after kills.
const SETTLED: u64 = 240;
/// The daemon deletes unused templates after 10 minutes and searches for them every 10 minutes.
/// With one minute until the daemon is ready, they are deleted within this time.
const COLLECTED: u64 = 15 * 60;

/// The kind of call that a kill interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Launch,
    Template,
    End,
}

impl Act {
    const ALL: [Act; 3] = [Act::Launch, Act::Template, Act::End];

    fn call(self) -> &'static str {
        match self {
            Act::Launch => "ec2:CreateFleet",
            Act::Template => "ec2:CreateLaunchTemplate",
            Act::End => "ec2:TerminateInstances",
        }
    }
}

/// The progress of the call when the daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// On its way to EC2. It arrives later, or never.
    Before,
    /// EC2 has executed it, and the response has not arrived.
    During,
    /// The response has arrived.
    After,
}

const MOMENTS: [Moment; 3] = [Moment::Before, Moment::During, Moment::After];

/// An AWS fault in addition to the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    Drop,
    Delay,
    Unavailable,
    Throttle,
    Stale,
}

const TROUBLES: [Trouble; 5] =
    [Trouble::Drop, Trouble::Delay, Trouble::Unavailable, Trouble::Throttle, Trouble::Stale];

impl Trouble {
    fn kind(self) -> &'static str {
        match self {
            Trouble::Drop => "drop",
            Trouble::Delay => "delay",
            Trouble::Unavailable => "unavailable",
            Trouble::Throttle => "throttle",
            Trouble::Stale => "stale",
        }
    }

    /// Injects faults before this many calls are held. They also affect the next daemon.
    fn first(self, lane: &Lane, act: Act, calls: usize, dice: &mut Rng) {
        let all = json!({"times": calls});
        match self {
            // An SDK tries three times before it reports an error to the engine, which tries again.
            // It tries launches only once.
            Trouble::Drop => {
                // Terminations are batched, and a terminated instance is not terminated again.
                let times = match act {
                    Act::End => dice.usize(1..=2),
                    _ if dice.bool() => calls,
                    _ => 3 * calls,
                };
                lane.fault(act.call(), self.kind(), &json!({"times": times}));
            }
            Trouble::Unavailable | Trouble::Throttle => lane.fault(act.call(), self.kind(), &all),
            Trouble::Delay | Trouble::Stale => {}
        }
    }

    /// Injects faults for the next daemon.
    fn next(self, lane: &Lane, act: Act, dice: &mut Rng) {
        let times = dice.usize(1..=3);
        let seconds = f64::from(dice.u32(200..2500)) / 1000.0;
        let how = json!({"times": times, "seconds": seconds});
        // A delayed call would escape the hold of the next kill.
        if !matches!(self, Trouble::Delay | Trouble::Stale) {
            lane.fault(act.call(), self.kind(), &how);
        }
        lane.fault("ec2:DescribeInstances", self.kind(), &how);
    }
}

/// The numbers of completed and started runs.
#[derive(Debug, Default)]
struct Tally {
    runs: BTreeMap<(Act, Moment), usize>,
    /// Runs that lanes have started.
    begun: BTreeMap<(Act, Moment), usize>,
    troubles: BTreeMap<(Act, Trouble), usize>,
    kills: usize,
    late: usize,
}

impl Tally {
    /// Returns the least tested moment of this call, or `None` if all moments have enough runs.
    fn begin(&mut self, act: Act, calls: usize) -> Option<Moment> {
        let goal = goal();
        let count = |moment: &Moment| {
            let key = (act, *moment);
            let of = |map: &BTreeMap<_, usize>| map.get(&key).copied().unwrap_or_default();
            of(&self.runs) + of(&self.begun)
        };
        let least = MOMENTS.into_iter().min_by_key(count)?;
        (count(&least) < goal).then(|| {
            *self.begun.entry((act, least)).or_default() += calls;
            least
        })
    }

    fn end(&mut self, (act, moment): (Act, Moment), trouble: Trouble, calls: (usize, usize)) {
        let begun = self.begun.entry((act, moment)).or_default();
        *begun = begun.saturating_sub(calls.0);
        *self.runs.entry((act, moment)).or_default() += calls.1;
        *self.troubles.entry((act, trouble)).or_default() += calls.1;
        self.kills += 1;
        if self.kills.is_multiple_of(50) {
            println!("{} kills: {:?}", self.kills, self.runs);
        }
    }

    fn is_done(&self) -> bool {
        let goal = goal();
        let mut kinds = Act::ALL.into_iter().flat_map(|act| MOMENTS.map(|moment| (act, moment)));
        kinds.all(|kind| self.runs.get(&kind).is_some_and(|runs| *runs >= goal))
    }
}

fn sized(sizes: (usize, usize)) -> usize {
    if is_campaign() { sizes.0 } else { sizes.1 }
}

/// Returns a number from the environment, or the default.
fn asked(name: &str, usual: usize) -> usize {
    let said = variable(name).and_then(|text| text.parse().ok());
    said.unwrap_or(usual)
}

/// Returns the number of runs of each kind.
fn goal() -> usize {
    asked("OUTRIGGER_KILLS", sized(RUNS))
}

/// A daemon that is killed repeatedly.
struct Victim {
    lane: Lane,
    site: Arc<Site>,
    tally: Arc<Mutex<Tally>>,
    dice: Rng,
    late: Vec<JoinHandle<()>>,
}

impl Victim {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the daemon until every kind has its runs, and removes all pods at the end.
    async fn suffer(mut self) -> Lane {
        self.lane.start();
        while !self.tally().is_done() {
            let mut idle = true;
            for act in TURNS {
                let calls = match act {
                    Act::Template => 1,
                    Act::Launch => LAUNCHES,
                    Act::End => self.lane.pods().max(LAUNCHES),
                };
                let moment = self.tally().begin(act, calls);
                if let Some(moment) = moment {
                    idle = false;
                    self.run(act, moment, calls).await;
                }
            }
            if idle {
                // Other lanes are finishing the last runs.
                sleep(Duration::from_secs(1)).await;
            }
        }
        for late in self.late {
            late.await.expect("the delayed call is released");
        }
        assert_single(&self.site.aws, Some(&self.lane.name));
        self.lane.settled(SETTLED).await;
        self.lane.empty().await;
        self.lane.settled(SETTLED).await;
        self.lane
    }

    /// Makes one run with one kill.
    async fn run(&mut self, act: Act, moment: Moment, calls: usize) {
        if act == Act::End {
            if self.lane.pods() == 0 {
                self.lane.deploy(LAUNCHES).await;
            }
            // A second instance of a claim is never terminated, so this check precedes the wait.
            assert_single(&self.site.aws, Some(&self.lane.name));
            self.lane.settled(SETTLED).await;
        }
        let trouble = TROUBLES[self.dice.usize(0..TROUBLES.len())];
        trouble.first(&self.lane, act, calls, &mut self.dice);
        let mut hold = json!({"times": null, "after": moment != Moment::Before});
        if trouble == Trouble::Delay {
            hold["seconds"] = json!(0.5);
        }
        self.lane.fault(act.call(), "hold", &hold);
        match act {
            Act::Template => self.lane.deploy(1).await,
            Act::Launch => self.lane.deploy(LAUNCHES).await,
            Act::End => self.lane.empty().await,
        }
        let held = self.lane.held(act.call(), calls).await;
        self.kill(moment, &held).await;
        self.lane.well();
        self.lane.lose_rest();
        trouble.next(&self.lane, act, &mut self.dice);
        self.lane.start();
        let runs = (calls, distinct(&held));
        self.tally().end((act, moment), trouble, runs);
    }

    async fn kill(&mut self, moment: Moment, held: &Held) {
        if moment == Moment::After {
            self.lane.deliver(held).await;
            // The daemon may start to process the response.
            sleep(Duration::from_millis(self.dice.u64(0..20))).await;
            self.lane.kill();
            return;
        }
        self.lane.kill();
        if moment == Moment::During || self.dice.bool() {
            self.lane.lose(held);
            return;
        }
        let wait = Duration::from_millis(self.dice.u64(0..LATE_MS));
        let (aws, held) = (Arc::clone(&self.site.aws), held.clone());
        self.tally().late += distinct(&held);
        self.late.push(tokio::spawn(async move {
            sleep(wait).await;
            release(&aws, &held, false);
        }));
    }
}

/// Checks that no claim ever had two instances. Returns the number of instances.
fn assert_single(aws: &Aws, installation: Option<&str>) -> usize {
    let all = aws.roll(installation);
    assert_eq!(doubles(&all), BTreeMap::new(), "claims with two instances");
    all.len()
}

/// Returns the claims with more than one instance, and the instances without a claim.
fn doubles(all: &[Value]) -> BTreeMap<String, Vec<String>> {
    let mut claims: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in all {
        let id = one["id"].as_str().unwrap_or_default().to_owned();
        claims.entry(one["claim"].to_string()).or_default().push(id);
    }
    claims.retain(|claim, instances| claim == "null" || instances.len() > 1);
    claims
}

/// Shows that the check of the campaign can fail: it detects two instances of one claim.
#[tokio::test]
async fn two_instances_of_one_claim_are_detected() {
    let name = "aws::kills::two_instances_of_one_claim_are_detected";
    let Some(bench) = Bench::start(name).await else {
        return;
    };
    let launch = async |token: &str, claim: &str| {
        let tag = Tag::builder().key("outrigger.dev/claim").value(claim);
        let tags = TagSpecification::builder().resource_type(ResourceType::Instance);
        let call = bench.fleet(token, &[(TYPE, 0.1)]);
        let call = call.tag_specifications(tags.tags(tag.build()).build());
        let answer = call.send().await.expect("a fleet");
        answer.instances()[0].instance_ids()[0].clone()
    };
    let first = launch("one", "a").await;
    launch("two", "b").await;
    launch("one", "a").await;
    assert_eq!(doubles(&bench.aws.roll(None)), BTreeMap::new());
    let mut both = [first, launch("three", "a").await];
    let mut found = doubles(&bench.aws.roll(None));
    let told = found.get_mut("\"a\"").expect("the claim");
    both.sort();
    told.sort();
    assert_eq!(told, &both);
    assert_eq!(found.len(), 1);
}

/// Checks that the daemons delete all unused launch templates.
async fn assert_collected(aws: &Aws, lanes: &mut [Lane]) {
    for lane in lanes {
        lane.kill();
        lane.start();
    }
    let before = aws.templates().len();
    for _ in 0..COLLECTED {
        if aws.templates().is_empty() {
            println!("{before} templates, all collected");
            return;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("templates remain: {} of {before}", aws.templates().len());
}

fn print(tally: &Tally) {
    fn rows<K: Debug>(map: &BTreeMap<K, usize>) {
        for (key, count) in map {
            println!("{count:5} {key:?}");
        }
    }
    let total: usize = tally.runs.values().sum();
    println!("{total} runs by {} kills:", tally.kills);
    rows(&tally.runs);
    println!("with these AWS faults ({} calls were delayed):", tally.late);
    rows(&tally.troubles);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_daemon_duplicates_and_leaks_nothing() {
    let name = "aws::kills::killed_daemon_duplicates_and_leaks_nothing";
    let Some((plane, api, aws)) = ground(name, &[], &["--types", TYPE]).await else {
        return;
    };
    // Instances boot within a second. EC2 lists terminated instances for an hour, which makes moto
    // slow, so the test shortens this time.
    aws.ask(&json!({"do": "settings", "boot": 1, "forget": 300}));
    let machines = Kubelets::start(Arc::clone(&aws), api.clone(), Sizes::new());
    let site =
        Arc::new(Site { aws: Arc::clone(&aws), api, kubeconfig: plane.kubeconfig().to_owned() });
    let tally = Arc::new(Mutex::new(Tally::default()));
    let start = clock();
    let seed = u64::try_from(asked("OUTRIGGER_SEED", 1)).unwrap_or(1);
    let mut victims = tokio::task::JoinSet::new();
    for number in 0..sized(LANES) {
        let victim = Victim {
            lane: Lane::new(Arc::clone(&site), number),
            site: Arc::clone(&site),
            tally: Arc::clone(&tally),
            dice: Rng::with_seed(1000 * seed + number as u64),
            late: Vec::new(),
        };
        victims.spawn(victim.suffer());
    }
    let mut lanes = Vec::new();
    while let Some(lane) = victims.join_next().await {
        // A panic of one lane is reported before the others stop.
        lanes.push(lane.expect("a lane succeeds"));
    }
    print(&tally.lock().unwrap_or_else(PoisonError::into_inner));
    let launched = assert_single(&aws, None);
    println!(
        "{launched} instances launched, each for its own claim, and all terminated; {:.1} minutes",
        start.elapsed().as_secs_f64() / 60.0
    );
    let recorded = called(aws.calls(), |key| key.starts_with("lane-"));
    assert_terms(&recorded, (lanes.len(), 2));
    assert_eq!(machines.refused(), [].into());
    for lane in &lanes {
        let log = lane.log();
        let panics = log.lines().filter(|line| line.contains("panicked"));
        assert_eq!(panics.collect::<Vec<_>>(), Vec::<&str>::new());
    }
    if is_campaign() {
        assert_collected(&aws, &mut lanes).await;
    }
}
