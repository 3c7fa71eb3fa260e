//! From pending pods to a registered node: batching, launches, and the settings of the node.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use outrigger::config::{Inputs, SourceFile, load};
use outrigger::engine::Engine;
use outrigger::engine::batcher::PodBatcher;
use outrigger::engine::command::{Command, NodePatch};
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::{Batching, ManagementMode};
use outrigger::model::instance::{Instance, InstanceState};
use outrigger::model::labels::Labels;
use outrigger::model::node::Node;
use outrigger::model::pod::Pod;
use outrigger::model::pool::Pool;
use outrigger::model::requirement::Requirement;
use outrigger::model::taint::Effect;
use outrigger::model::template_hash::pool_hash;
use outrigger::model::watched_object::{Namespace, ObjectKind, WatchedObject};
use outrigger::provider::{CommandResult, Launch};

use super::fixture::{Check, World, ensure};
use super::notation::{With, pod, read, taint, tolerates};
use super::run::{Case, run_cases};

/// An engine with the pools and types of a world, and a provider whose launches always succeed.
struct EngineRun {
    engine: Engine,
    now: Timestamp,
    instances: Vec<Instance>,
    launches: Vec<Launch>,
    patches: Vec<NodePatch>,
    reports: Vec<Report>,
    /// Whether the results of launches are withheld.
    withholds: bool,
    withheld: Option<Event>,
}

/// The Namespace that identifies a cluster.
fn kube_system() -> WatchedObject {
    WatchedObject::Namespace(Namespace {
        name: "kube-system".to_owned(),
        uid: "here".to_owned(),
        ..Namespace::default()
    })
}

impl EngineRun {
    /// A cluster with these pending pods.
    fn new(world: &mut World, pods: &[Pod]) -> Self {
        world.cluster().mode = ManagementMode::Manage;
        let mut engine_run = Self {
            engine: Engine::new(7),
            now: world.now,
            instances: Vec::new(),
            launches: Vec::new(),
            patches: Vec::new(),
            reports: Vec::new(),
            withholds: false,
            withheld: None,
        };
        engine_run.send(Event::ConfigChanged(world.state.cluster.clone()));
        engine_run.send(Event::CatalogChanged(world.state.catalog.clone()));
        let waiting = pods.iter().cloned().map(|pod| {
            let waits = pod.with(|pod| pod.unschedulable = true);
            WatchedObject::Pod(Box::new(waits))
        });
        let mut waiting: Vec<WatchedObject> = waiting.collect();
        for kind in ObjectKind::ALL {
            let objects = match kind {
                ObjectKind::Pod => std::mem::take(&mut waiting),
                ObjectKind::Namespace => vec![kube_system()],
                _ => Vec::new(),
            };
            engine_run.send(Event::Reset(kind, objects));
        }
        engine_run
    }

    fn send(&mut self, event: Event) {
        self.engine.handle_event(event, self.now);
    }

    /// Simulates half a minute, in which every command gets a result.
    fn run(&mut self) {
        let end = self.now + SignedDuration::from_secs(30);
        while self.now < end {
            while let Some(issued) = self.engine.next_command() {
                let launches = matches!(issued.command, Command::Launch(_));
                let answer = self.answer(issued.command);
                let event = Event::Answered(issued.id, answer);
                if launches && self.withholds {
                    self.withheld = Some(event);
                } else {
                    self.send(event);
                }
            }
            self.reports.extend(std::iter::from_fn(|| self.engine.next_report()));
            let next = self.engine.poll_timeout().map_or(end, |(at, _)| at);
            self.now = next.clamp(self.now, end);
            for kind in ObjectKind::ALL {
                self.send(Event::WatchAlive(kind));
            }
            self.send(Event::Timeout);
            if next >= end {
                break;
            }
        }
    }

    fn answer(&mut self, command: Command) -> CommandResult {
        match command {
            Command::Launch(launch) => {
                let instance = Instance {
                    id: format!("i-{}", self.launches.len()).as_str().into(),
                    offering: launch.offerings[0].clone(),
                    state: InstanceState::Running,
                    launched: self.now,
                    tags: launch.tags.clone().into(),
                    node: None,
                    facts: None,
                };
                self.launches.push(*launch);
                self.instances.push(instance.clone());
                CommandResult::Launched(instance)
            }
            Command::ListInstances => CommandResult::Instances(self.instances.clone()),
            Command::PatchNode(patch) => {
                self.patches.push(patch);
                CommandResult::Done
            }
            _ => CommandResult::Done,
        }
    }

    /// Registers the node of the first launch, and returns it with the patch of the engine.
    fn registered(&mut self) -> Result<Node, String> {
        let launch = self.launches.first().ok_or("nothing is launched")?;
        let mut node = Node {
            name: "n".into(),
            uid: "uid-n".to_owned(),
            version: "1".to_owned(),
            provider_id: "fake:///z/i-0".to_owned(),
            labels: launch.labels.clone(),
            taints: launch.taints.clone(),
            ready: true,
            ..Node::default()
        };
        self.send(Event::Applied(WatchedObject::Node(Box::new(node.clone()))));
        self.run();
        let patch = self.patches.first().ok_or("the node is not registered")?;
        let set = |all: &[(String, Option<String>)], into: &mut Labels| {
            let some = all.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?)));
            into.extend(some);
        };
        set(&patch.labels, &mut node.labels);
        set(&patch.annotations, &mut node.annotations);
        if let Some(taints) = &patch.taints {
            node.taints.clone_from(taints);
        }
        Ok(node)
    }
}

/// Returns the registered node for one pod, launched from a pool with this change.
fn node_of(change: impl FnOnce(&mut Pool), pod: Pod) -> Result<Node, String> {
    let mut world = World::new();
    change(world.pool());
    let mut engine_run = EngineRun::new(&mut world, &[pod]);
    engine_run.run();
    engine_run.registered()
}

fn check_label(labels: &Labels, key: &str, value: &str) -> Check {
    let found = labels.get(key).map(String::as_str);
    ensure(found == Some(value), || format!("{key} is {found:?}, not {value:?}"))
}

fn add_labels(pool: &mut Pool, labels: &[(&str, &str)]) {
    for (key, value) in labels {
        pool.labels.insert((*key).to_owned(), (*value).to_owned());
    }
}

const NODES: &[Case] = &[
    ("provisioning:1528", || {
        let note = |pool: &mut Pool| {
            let pair = ("example.com/note".to_owned(), "of the pool".to_owned());
            pool.annotations.extend([pair]);
        };
        check_label(&node_of(note, pod("p"))?.annotations, "example.com/note", "of the pool")
    }),
    ("provisioning:1546", || {
        let pool = |pool: &mut Pool| {
            add_labels(pool, &[("one", "x")]);
            let texts =
                ["two in y", "three not z", "four < 4", "five > 5", "six exists", "seven absent"];
            for text in texts {
                let (key, requirement) = read(text);
                pool.requirements.add(key, requirement);
            }
        };
        let node = node_of(pool, pod("p"))?;
        check_label(&node.labels, "one", "x")?;
        check_label(&node.labels, "two", "y")?;
        let not = |key: &str| !node.labels.contains_key(key);
        ensure(not("three") && not("seven"), || format!("{:?}", node.labels))?;
        for text in ["four < 4", "five > 5", "six exists"] {
            let (key, requirement): (&str, Requirement) = read(text);
            let value = node.labels.get(key);
            ensure(value.is_some_and(|value| requirement.allows_value(value)), || {
                format!("{key}: {value:?}")
            })?;
        }
        Ok(())
    }),
    ("provisioning:1579", || check_kubernetes_domains("")),
    ("provisioning:1601", || check_kubernetes_domains("subdomain.")),
    ("topology:3280", || {
        let team = taint("team", "x", Effect::NoSchedule);
        let pod = pod("p").tolerate(tolerates("team"));
        let node = node_of(|pool| pool.taints = vec![team.clone()], pod)?;
        ensure(node.taints.contains(&team), || format!("{:?}", node.taints))
    }),
    ("topology:3290", || {
        let mut world = World::new();
        world.pool().taints = vec![taint("team", "x", Effect::NoSchedule)];
        let all = pod("all").tolerate(tolerates(""));
        let pods = [pod("p").tolerate(tolerates("team")), all, pod("q")];
        world.add(pods).plan().placed(&["p", "all"], &["q"])
    }),
    ("topology:3317", || {
        let start = taint("start", "", Effect::NoSchedule);
        let mut world = World::new();
        world.pool().startup_taints = vec![start.clone()];
        world.add([pod("p")]).plan().all_placed()?;
        let node = node_of(|pool| pool.startup_taints = vec![start.clone()], pod("p"))?;
        ensure(node.taints.contains(&start), || format!("{:?}", node.taints))
    }),
    ("topology:3325", || {
        let team = taint("team", "x", Effect::NoExecute);
        let pod = pod("p").tolerate(tolerates("team")).tolerate(tolerates("other"));
        let node = node_of(|pool| pool.taints = vec![team.clone()], pod)?;
        let keys: Vec<&str> = node.taints.iter().map(|taint| taint.key.as_str()).collect();
        ensure(!keys.contains(&"other") && keys.contains(&"team"), || format!("{keys:?}"))
    }),
];

/// Checks that a pool may set labels in the domains of Kubernetes.
fn check_kubernetes_domains(prefix: &str) -> Check {
    let keys = ["kops.k8s.io", "node.kubernetes.io", "node-restriction.kubernetes.io"]
        .map(|domain| format!("{prefix}{domain}/test"));
    let pairs: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "x")).collect();
    let node = node_of(|pool| add_labels(pool, &pairs), pod("p"))?;
    keys.iter().try_for_each(|key| check_label(&node.labels, key, "x"))
}

#[test]
fn nodes_get_the_labels_annotations_and_taints_of_the_pool() {
    run_cases(NODES);
}

const RECORDS: &[Case] = &[
    ("provisioning:460", || {
        let mut world = World::new();
        let mut engine_run = EngineRun::new(&mut world, &[pod("p")]);
        engine_run.withholds = true;
        engine_run.run();
        let before = pool_hash(world.pool());
        add_labels(world.pool(), &[("team", "x")]);
        ensure(pool_hash(world.pool()) != before, || "labels must change the hash".to_owned())?;
        engine_run.send(Event::ConfigChanged(world.state.cluster.clone()));
        let answer = engine_run.withheld.take().ok_or("nothing is launched")?;
        engine_run.send(answer);
        engine_run.run();
        let claims: Vec<_> = engine_run.engine.state().ledger.claims.values().collect();
        let hashes: Vec<&str> =
            claims.iter().map(|claim| claim.record.pool_hash.as_str()).collect();
        ensure(hashes == [before.as_str()], || format!("{hashes:?}, not {before}"))?;
        let node = engine_run.registered()?;
        check_label(&node.annotations, "outrigger.dev/pool-hash", &before)
    }),
    ("provisioning:1885", || {
        let mut world = World::new();
        world.pool().node_class = Some("gpu".into());
        let class =
            outrigger::model::node_class::NodeClass { name: "gpu".into(), ..Default::default() };
        world.cluster().node_classes = vec![class];
        let mut engine_run = EngineRun::new(&mut world, &[pod("p")]);
        engine_run.run();
        let launch = engine_run.launches.first().ok_or("nothing is launched")?;
        let class = launch.claim.node_class.as_ref().map(|class| class.as_str());
        ensure(class == Some("gpu"), || format!("{class:?}"))
    }),
    ("provisioning:247", || {
        check_grace_period(&["defaults \"pool\" { termination_grace_period = \"1h\" }"], Some(1))
    }),
    ("provisioning:259", || check_grace_period(&[], None)),
    ("provisioning:270", || {
        let both = [
            "defaults \"pool\" { termination_grace_period = \"1h\" }",
            "termination_grace_period = \"2h\"",
        ];
        check_grace_period(&both, Some(2))
    }),
];

/// Checks the termination grace period of a claim in hours, with these settings in the defaults of
/// pools and in the pool.
fn check_grace_period(settings: &[&str], hours: Option<i64>) -> Check {
    let all = settings.first().unwrap_or(&"");
    let of_pool = settings.get(1).unwrap_or(&"");
    let text =
        format!("cluster \"a\" {{\n  simulated {{}}\n}}\n{all}\npool \"a\" {{\n  {of_pool}\n}}\n");
    let config = load(&[SourceFile::new("a.hcl", text)], &Inputs::default());
    let config = config.map_err(|problems| format!("{problems:?}"))?;
    let mut world = World::new();
    let mut pool = config.clusters[0].pools[0].clone();
    pool.name = "default".into();
    *world.pool() = pool;
    let mut engine_run = EngineRun::new(&mut world, &[pod("p")]);
    engine_run.run();
    let launch = engine_run.launches.first().ok_or("nothing is launched")?;
    let grace = launch.claim.termination_grace_period;
    let expect = hours.map(SignedDuration::from_hours);
    ensure(grace == expect, || format!("{grace:?}, not {expect:?}"))
}

#[test]
fn claims_record_the_settings_they_were_launched_with() {
    run_cases(RECORDS);
}

const BATCHES: &[Case] = &[
    ("provisioning:119", || check_batch_end(&[(0, "p")], 1000)),
    ("provisioning:137", || check_batch_end(&[(0, "p"), (500, "p")], 1000)),
    ("provisioning:177", || {
        check_batch_end(&[(0, "p"), (500, "q")], 1500)?;
        let many: Vec<(i64, String)> = (0..30).map(|at| (at * 500, format!("p{at}"))).collect();
        let many: Vec<(i64, &str)> = many.iter().map(|(at, pod)| (*at, pod.as_str())).collect();
        // The batch closes after ten seconds, even if more pods arrive.
        check_batch_end(&many[..20], 10_000)
    }),
];

/// Checks when a batch closes, in milliseconds, if these pods arrive at these times.
fn check_batch_end(joining: &[(i64, &str)], expect: i64) -> Check {
    let start = Timestamp::UNIX_EPOCH;
    let mut batch = PodBatcher::default();
    let mut known = BTreeMap::new();
    for (at, name) in joining {
        known.insert(*name, pod(name).key);
        let keys: Vec<_> = known.values().collect();
        batch.observe_pending(&keys, start + SignedDuration::from_millis(*at));
    }
    let due = batch.next_plan_at(&Batching::default());
    let got = due.map(|due| due.duration_since(start).as_millis());
    ensure(got == Some(i128::from(expect)), || format!("{got:?} ms, not {expect}"))
}

#[test]
fn batch_closes_when_no_new_pods_arrive() {
    run_cases(BATCHES);
}

const REPORTS: &[Case] = &[
    ("scheduling:4318", || check_report(|pending, _| pending == 3)),
    ("scheduling:4355", || check_report(|_, unplaced| unplaced == 1)),
    ("scheduling:4419", || {
        let mut engine_run = EngineRun::new(&mut World::new(), &[pod("p"), pod("q")]);
        engine_run.run();
        let waited = engine_run.reports.iter().filter_map(|report| match report {
            Report::Decided(waited) => Some(&waited[..]),
            _ => None,
        });
        let waited: Vec<&[SignedDuration]> = waited.collect();
        let idle = Batching::default().idle;
        // Each pod is reported once, and has waited for the end of the batch.
        ensure(waited == [[idle; 2]], || format!("{waited:?}"))
    }),
];

/// Checks the numbers of pending and unschedulable pods that a scheduling pass reports.
fn check_report(expect: fn(usize, usize) -> bool) -> Check {
    let pods = [pod("p"), pod("q"), pod("r").select("zone", "unknown")];
    let mut engine_run = EngineRun::new(&mut World::new(), &pods);
    engine_run.run();
    let mut reports = engine_run.reports.iter();
    let reported = reports.find_map(|report| match report {
        Report::Planned { pending, unplaced, .. } => Some((*pending, *unplaced)),
        _ => None,
    });
    let (pending, unplaced) = reported.ok_or("no scheduling pass is reported")?;
    ensure(expect(pending, unplaced), || format!("{pending} pending, {unplaced} unschedulable"))
}

#[test]
fn scheduling_pass_reports_pod_counts_and_wait_times() {
    run_cases(REPORTS);
}

#[test]
fn engine_launches_the_preferred_offering_of_the_plan() {
    let mut world = World::new();
    let mut engine_run = EngineRun::new(&mut world, &[pod("p").cpu(3000)]);
    engine_run.run();
    let plan = world.add([pod("p").cpu(3000)]).plan();
    let planned = plan.claim_of("p").map(|claim| claim.offerings[0].0.clone());
    let launched = engine_run.launches.first().map(|launch| launch.offerings[0].clone());
    assert_eq!(launched, planned.ok());
}
