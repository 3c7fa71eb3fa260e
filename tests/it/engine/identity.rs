//! Another cluster behind the kubeconfig, another region, Nodes that somebody has deleted: nothing
//! is ended, nothing is launched, and it is said why.
//! It must not know how instances are listed.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use outrigger::engine::Engine;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::claim::{TAG_CLUSTER_UID, TAG_LEASE};
use outrigger::model::cluster::Mode;
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::InstanceState;
use outrigger::model::node::Node;
use outrigger::model::notes::ACCEPTED;
use outrigger::model::object::{Kind, Object};
use outrigger::model::pod::Pod;

use super::{Stage, bound, kube_system, owned_pod, waiting_pod};

/// Nodes of a settled cluster.
const COUNT: usize = 10;

/// A cluster with this many nodes, each with a pod that fills it.
fn settled() -> Stage {
    let mut stage = Stage::new(Mode::Manage);
    stage.change(|own| own.pools[0].replicas = u32::try_from(COUNT).ok());
    stage.sync(vec![], vec![]);
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), COUNT);
    for number in 0..COUNT {
        stage.apply(Object::Node(Box::new(stage.node(number))));
        let pod = owned_pod(&format!("p{number}"));
        stage.apply(bound(pod, &format!("node-{number}")));
    }
    stage.run(60, &[]);
    stage.seen.clear();
    stage.reports.clear();
    stage
}

impl Stage {
    /// The daemon is started anew and finds these objects at an API server of this UID.
    fn start_at(&mut self, uid: &str, nodes: Vec<Node>, pods: Vec<Pod>) {
        let cluster = self.engine.state().cluster.clone();
        self.engine = Engine::new(8);
        self.start(Mode::Manage);
        self.event(Event::ConfigChanged(cluster));
        self.list_at(uid, nodes, pods);
        self.event(Event::BuffersChanged(Vec::new()));
        self.seen.clear();
    }

    fn nodes(&self) -> Vec<Node> {
        let nodes = self.engine.state().objects.nodes.values();
        nodes.cloned().collect()
    }

    fn pods(&self) -> Vec<Pod> {
        let pods = self.engine.state().objects.pods.values();
        pods.cloned().collect()
    }

    fn delete_nodes(&mut self, count: usize) {
        for number in 0..count {
            let key = ObjectKey::new("", format!("node-{number}"));
            self.event(Event::Deleted(Kind::Node, key));
        }
    }

    /// Lets time pass, and lists all anew at this API server where that is asked for.
    fn run_at(&mut self, uid: &str, nodes: &[Node], seconds: i64) {
        for _ in 0..seconds / 10 {
            self.run(10, &["rewatch"]);
            let nodes = nodes.iter().cloned().map(|own| Object::Node(Box::new(own)));
            self.event(Event::Reset(Kind::Node, nodes.collect()));
            let namespaces = vec![kube_system(uid)];
            self.event(Event::Reset(Kind::Namespace, namespaces));
        }
    }

    /// What was changed anywhere: launches, ends and changes of Nodes, by name.
    fn changes(&self) -> BTreeMap<&str, usize> {
        let mut all = BTreeMap::new();
        let acts = [
            "launch",
            "terminate",
            "patch_node",
            "delete_node",
            "evict",
            "tag",
        ];
        let acts = self.seen.iter().filter(|own| acts.contains(&own.as_str()));
        acts.for_each(|own| *all.entry(own.as_str()).or_insert(0) += 1);
        all
    }

    /// The code that was last said of why this is another cluster.
    fn code(&self) -> Option<&'static str> {
        let said = self.reports.iter().filter_map(|own| match own {
            Report::Mismatch(own) => Some(Some(own.code())),
            Report::Matches => Some(None),
            _ => None,
        });
        said.last().flatten()
    }

    /// The id that a person is to accept, out of what the status says.
    fn id(&self) -> String {
        let status = self.engine.status(self.now);
        let text = status.held_by.unwrap_or_default();
        let id = text.split("--accept ").nth(1).unwrap_or_default();
        let id = id.split('`').next().unwrap_or_default();
        let held = status.held_ends.map(|own| own.id);
        held.unwrap_or(id.to_owned())
    }
}

/// The experiment of the issue: a stopped daemon, a kubeconfig of another cluster, a start.
#[test]
fn nothing_is_done_to_the_instances_of_another_cluster() {
    let mut stage = settled();
    let (nodes, pods) = (stage.nodes(), stage.pods());
    stage.start_at("elsewhere", vec![], vec![waiting_pod("of-the-other")]);
    stage.run_at("elsewhere", &[], 30);
    assert_eq!(
        stage.code(),
        Some("other_cluster"),
        "said within half a minute"
    );
    stage.run_at("elsewhere", &[], 7_200);
    assert_eq!(stage.changes(), BTreeMap::new());
    let status = stage.engine.status(stage.now);
    assert_eq!(status.mismatch.as_deref(), Some("other_cluster"));
    assert!(stage.id().starts_with("one/identity/"), "{status:?}");
    // With the right kubeconfig all is as before.
    stage.start_at("here", nodes, pods);
    stage.run(600, &[]);
    assert_eq!((stage.count("launch"), stage.count("terminate")), (0, 0));
    assert!(stage.engine.is_ready());
    stage.apply(Object::Pod(Box::new(waiting_pod("new"))));
    let before = stage.launches.len();
    stage.run(10, &[]);
    assert!(stage.launches.len() >= before, "decisions go on");
}

/// An empty etcd behind the same address, while the daemon runs.
#[test]
fn an_api_server_that_answers_for_another_cluster_is_noticed_while_the_daemon_runs() {
    let mut stage = settled();
    let (nodes, pods) = (stage.nodes(), stage.pods());
    stage.apply(Object::Pod(Box::new(waiting_pod("new"))));
    for kind in Kind::ALL {
        let objects = match kind {
            Kind::Namespace => vec![kube_system("elsewhere")],
            _ => Vec::new(),
        };
        stage.event(Event::Reset(kind, objects));
    }
    assert_eq!(
        stage.engine.next_command(),
        None,
        "nothing decided before goes out"
    );
    stage.run_at("elsewhere", &[], 3_600);
    assert_eq!(stage.changes(), BTreeMap::new());
    assert_eq!(stage.code(), Some("other_cluster"));
    stage.list_at("here", nodes, pods);
    stage.run(60, &[]);
    assert_eq!((stage.code(), stage.engine.is_ready()), (None, true));
    assert_eq!(stage.changes(), BTreeMap::new());
}

#[test]
fn a_cluster_that_was_built_anew_is_accepted_by_a_person() {
    let mut stage = settled();
    stage.start_at("anew", vec![], vec![waiting_pod("a")]);
    stage.run_at("anew", &[], 60);
    let id = stage.id();
    stage.annotate(ACCEPTED, Some(&id));
    stage.run_at("anew", &[], 60);
    assert_eq!((stage.code(), stage.count("terminate")), (None, 0));
    stage.run_at("anew", &[], 1_200);
    assert_eq!(stage.count("terminate"), COUNT, "their Nodes never come");
}

#[test]
fn instances_of_another_lease_stop_everything() {
    let mut stage = settled();
    let (nodes, pods) = (stage.nodes(), stage.pods());
    stage.change(|own| own.lease.name = "another".to_owned());
    stage.start_at("here", nodes, pods);
    stage.apply(Object::Pod(Box::new(waiting_pod("new"))));
    stage.run(600, &[]);
    assert_eq!(stage.changes(), BTreeMap::new());
    assert_eq!(stage.code(), Some("other_lease"));
    let id = stage.id();
    stage.annotate(ACCEPTED, Some(&id));
    stage.run(60, &[]);
    assert!(stage.engine.is_ready());
}

/// Another region, account or role: nothing that runs is listed.
#[test]
fn nothing_is_launched_where_ready_nodes_have_no_listed_instance() {
    let mut stage = settled();
    let (nodes, pods) = (stage.nodes(), stage.pods());
    let instances = std::mem::take(&mut stage.instances);
    stage.start_at("here", nodes, pods);
    stage.apply(Object::Pod(Box::new(waiting_pod("new"))));
    stage.run(30, &[]);
    assert_eq!(stage.code(), Some("other_instances"));
    stage.run(3_600, &[]);
    assert_eq!(stage.changes(), BTreeMap::new());
    stage.instances = instances;
    stage.run(60, &[]);
    assert_eq!((stage.code(), stage.engine.is_ready()), (None, true));
}

/// By mistake, by a cloud controller with wrong credentials, by an etcd of before.
#[test]
fn nothing_ends_where_many_nodes_are_deleted() {
    for restarts in [false, true] {
        for count in [COUNT, COUNT / 2] {
            let mut stage = settled();
            let nodes = stage.nodes();
            stage.delete_nodes(count);
            let rest = stage.nodes();
            if restarts {
                let later = SignedDuration::from_hours(2);
                stage.now += later;
                stage.start_at("here", rest.clone(), vec![]);
            }
            stage.run_at("here", &rest, 30);
            let what = format!("{count} nodes, restart {restarts}");
            assert_eq!(stage.code(), Some("no_nodes"), "{what}");
            stage.apply(Object::Pod(Box::new(waiting_pod("new"))));
            stage.run_at("here", &rest, 3_600);
            assert_eq!(stage.changes(), BTreeMap::new(), "{what}");
            // Their kubelets come back.
            stage.run_at("here", &nodes, 60);
            assert_eq!(
                (stage.code(), stage.engine.is_ready()),
                (None, true),
                "{what}"
            );
            assert_eq!(stage.count("terminate"), 0, "{what}");
        }
    }
}

#[test]
fn instances_without_nodes_end_once_a_person_accepts_it() {
    let mut stage = settled();
    stage.delete_nodes(COUNT / 2);
    let rest = stage.nodes();
    stage.run_at("here", &rest, 60);
    let id = stage.id();
    assert!(id.starts_with("one/ends/"), "{id}");
    stage.annotate(ACCEPTED, Some(&id));
    stage.run_at("here", &rest, 300);
    assert_eq!((stage.code(), stage.count("terminate")), (None, COUNT / 2));
    stage.annotate(ACCEPTED, None);
    stage.delete_nodes(COUNT);
    stage.run_at("here", &[], 600);
    assert_eq!(
        stage.count("terminate"),
        COUNT / 2,
        "only what was accepted"
    );
}

/// Two of ten may end within ten minutes. Where a third Node goes meanwhile, its instance waits.
#[test]
fn nodes_that_are_deleted_one_by_one_take_so_many_instances_along_and_no_more() {
    let mut stage = settled();
    let mut ended = Vec::new();
    for number in 0..4 {
        let key = ObjectKey::new("", format!("node-{number}"));
        stage.event(Event::Deleted(Kind::Node, key));
        let rest = stage.nodes();
        stage.run_at("here", &rest, 140);
        ended.push(stage.count("terminate"));
    }
    assert_eq!(ended, [1, 2, 2, 2], "{:?}", stage.seen);
    let status = stage.engine.status(stage.now);
    let held = status.held_ends.expect("it is said");
    assert!(held.id.starts_with("one/ends/"));
    let rest = stage.nodes();
    stage.run_at("here", &rest, 200);
    assert_eq!(stage.count("terminate"), 2, "a person has to accept it");
    stage.annotate(ACCEPTED, Some(&held.id));
    stage.run_at("here", &rest, 120);
    assert_eq!(stage.count("terminate"), 4);
    assert_eq!(stage.engine.status(stage.now).held_ends, None);
}

/// The provider takes many at once: their Nodes go before or after a listing shows it.
#[test]
fn launches_go_on_where_the_provider_has_ended_many_instances() {
    for nodes_first in [false, true] {
        let mut stage = settled();
        let lost = COUNT * 2 / 5;
        let end = |stage: &mut Stage| {
            for number in 0..lost {
                let own = stage.instances.get_mut(&format!("i-{number}"));
                own.expect("known").state = InstanceState::Terminated;
            }
        };
        if nodes_first {
            stage.delete_nodes(lost);
            stage.run(2, &["rewatch"]);
            end(&mut stage);
        } else {
            end(&mut stage);
            stage.run(61, &["rewatch"]);
            stage.delete_nodes(lost);
        }
        stage.run(120, &[]);
        assert_eq!(stage.code(), None, "nodes first: {nodes_first}");
        assert_eq!(
            stage.launches.len(),
            COUNT + lost,
            "nodes first: {nodes_first}"
        );
    }
}

/// A claim of 0.1 does not say of which cluster it is. It is of this one while a Node is ready that
/// is one of them.
#[test]
fn claims_of_before_end_only_where_a_ready_node_is_one_of_them() {
    for ready in [true, false] {
        let mut stage = settled();
        for own in stage.instances.values_mut() {
            let tags = std::sync::Arc::make_mut(&mut own.tags);
            tags.remove(TAG_CLUSTER_UID);
            tags.remove(TAG_LEASE);
        }
        let mut nodes = stage.nodes();
        nodes.remove(0);
        nodes.iter_mut().for_each(|own| own.ready &= ready);
        stage.start_at("here", nodes.clone(), vec![waiting_pod("new")]);
        stage.run_at("here", &nodes, 1_200);
        assert_eq!(
            stage.count("terminate"),
            usize::from(ready),
            "ready: {ready}"
        );
        assert_eq!(stage.code(), None);
        assert!(stage.engine.is_ready(), "launches go on");
    }
}
