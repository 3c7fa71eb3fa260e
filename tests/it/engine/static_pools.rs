//! Static pools: nodes are launched and disrupted to match `replicas`, independent of pods.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use outrigger::catalog::Catalog;
use outrigger::engine::Engine;
use outrigger::engine::command::Command;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::instance::{InstanceState, UnavailableKey};
use outrigger::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE};
use outrigger::model::pod::{Owner, Pod};
use outrigger::model::pool::{Pool, Reason};
use outrigger::model::requirement::Requirement;
use outrigger::model::watched_object::WatchedObject;
use outrigger::provider::{CommandResult, FailureKind, OfferingRefusal, RefusalKind};
use outrigger::scheduling::RejectionCode;
use outrigger::scheduling::static_pools::StaticDemand;

use super::{Stage, bound, pending_pod};

/// A static pool of on-demand nodes, which cost the same in every zone.
fn static_pool(replicas: u32) -> Pool {
    let mut pool = Pool::new("fixed");
    pool.replicas = Some(replicas);
    let on_demand = Requirement::is_in(["on-demand"]);
    pool.requirements.add(CAPACITY_TYPE, on_demand);
    let types = Requirement::is_in(["m6i.large", "m7i.large"]);
    pool.requirements.add(INSTANCE_TYPE, types);
    pool
}

/// A cluster without nodes that has this static pool beside the general one.
fn stage(mode: ManagementMode, replicas: u32) -> Stage {
    let mut stage = Stage::new(mode);
    stage.change(|cluster| cluster.pools.push(static_pool(replicas)));
    stage.sync(vec![], vec![]);
    stage
}

impl Stage {
    fn set_replicas(&mut self, replicas: u32) {
        self.change(|cluster| cluster.pools[1].replicas = Some(replicas));
    }

    /// Registers the nodes of these launches as ready.
    fn register_nodes(&mut self, launches: std::ops::Range<usize>) {
        for at in launches {
            let node = self.node(at);
            self.apply(WatchedObject::Node(Box::new(node)));
        }
        self.run(5, &[]);
    }

    /// Binds pods to the node of a launch.
    fn bind_pods(&mut self, launch: usize, pods: usize) {
        for at in 0..pods {
            let pod = Pod {
                owner: Some(Owner {
                    kind: "ReplicaSet".into(),
                    name: "web".into(),
                    uid: "web".into(),
                }),
                ..pending_pod(&format!("on-{launch}-{at}"))
            };
            self.apply(bound(pod, &format!("node-{launch}")));
        }
    }

    /// The number of claims of the pool that are not being disrupted.
    fn remaining(&self) -> usize {
        let claims = self.engine.state().ledger.claims.values();
        let of_pool = claims.filter(|claim| claim.record.pool.as_str() == "fixed");
        of_pool.filter(|claim| claim.takes_pods()).count()
    }

    /// The disrupted nodes in order, with the reasons.
    fn disrupted_nodes(&self) -> Vec<(String, Reason)> {
        let disrupted_nodes = self.reports.iter().filter_map(|report| match report {
            Report::Retire { node, reason, .. } => {
                Some((node.as_ref().map_or("", |it| it.as_str()).to_owned(), *reason))
            }
            _ => None,
        });
        disrupted_nodes.collect()
    }

    /// The demands that were reported as met after a shortfall.
    fn met_demands(&self) -> Vec<StaticDemand> {
        let met_demands = self.reports.iter().filter_map(|report| match report {
            Report::Enough(need) => Some(need.clone()),
            _ => None,
        });
        met_demands.collect()
    }

    fn shortfalls(&self) -> Vec<(StaticDemand, usize, RejectionCode)> {
        let shortfalls = self.reports.iter().filter_map(|report| match report {
            Report::Short(shortfall) => {
                Some((shortfall.need.clone(), shortfall.missing, shortfall.reasons[0].code))
            }
            _ => None,
        });
        shortfalls.collect()
    }
}

#[test]
fn static_pool_spreads_its_nodes_over_zones_and_keeps_them_empty() {
    let mut stage = stage(ManagementMode::Manage, 3);
    stage.run(7, &[]);
    assert_eq!(stage.launches.len(), 3, "as soon as the cluster is in sync");
    let zones: BTreeSet<&str> =
        stage.launches.iter().map(|launch| launch.offerings[0].zone.as_str()).collect();
    assert_eq!(zones.len(), 3, "every zone has the same price");
    stage.register_nodes(0..3);
    stage.run(3600, &[]);
    assert_eq!(stage.launches.len(), 3);
    assert_eq!(stage.disrupted_nodes(), [], "an empty node is kept");
    assert_eq!(stage.remaining(), 3);
}

#[test]
fn surplus_node_untainted_unseen_by_the_watch_is_drained_before_termination() {
    let mut stage = stage(ManagementMode::Manage, 1);
    stage.run(10, &[]);
    let node = stage.node(0);
    stage.apply(WatchedObject::Node(Box::new(node)));
    // The API server has applied the patch that untaints the node, and the watch is late.
    let patches = stage.run(2, &["patch_node"]);
    let Command::PatchNode(patch) = &patches[0].command else {
        panic!("{patches:?}");
    };
    stage.event(Event::Answered(patches[0].id, CommandResult::Done));
    stage.set_replicas(0);
    stage.run(20, &[]);
    assert_eq!(stage.disrupted_nodes().len(), 1);
    assert_eq!(stage.count("terminate"), 0, "pods may run on the node by now");
    stage.patch(patch);
    stage.run(60, &[]);
    assert_eq!(stage.count("terminate"), 1);
}

#[test]
fn changed_replicas_apply_at_once_and_remove_the_least_used_nodes_first() {
    let mut stage = stage(ManagementMode::Manage, 2);
    stage.run(10, &[]);
    stage.register_nodes(0..2);
    stage.set_replicas(4);
    stage.run(2, &[]);
    assert_eq!(stage.launches.len(), 4);
    stage.register_nodes(2..4);
    stage.bind_pods(0, 1);
    stage.bind_pods(2, 2);
    stage.bind_pods(3, 1);
    stage.apply(bound(pending_pod("dear"), "node-3"));
    let protected = &mut pending_pod("dear");
    let protect = ("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned());
    protected.annotations.extend([protect]);
    stage.apply(bound(protected.clone(), "node-3"));
    // Order: empty nodes, few pods before many, and last the node with a do-not-disrupt pod.
    let order = ["node-1", "node-0", "node-2", "node-3"];
    for (left, node) in [3, 2, 1, 0].into_iter().zip(order) {
        stage.set_replicas(left);
        stage.run(2, &["evict"]);
        let last = stage.disrupted_nodes().pop();
        assert_eq!(last, Some((node.to_owned(), Reason::Surplus)));
        assert_eq!(stage.remaining(), left as usize);
    }
    stage.run(30, &["evict"]);
    // The empty node is terminated; on the others the evictable pods are evicted.
    assert_eq!(stage.count("terminate"), 1);
    assert!(stage.count("evict") >= 4);
}

#[test]
fn surplus_claim_without_a_node_is_terminated_first() {
    let mut stage = stage(ManagementMode::Manage, 2);
    stage.run(10, &[]);
    stage.register_nodes(0..1);
    stage.set_replicas(1);
    stage.run(10, &[]);
    assert_eq!(stage.disrupted_nodes(), [(String::new(), Reason::Surplus)]);
    assert_eq!(stage.count("terminate"), 1, "without a drain");
    stage.set_replicas(0);
    stage.run(20, &[]);
    assert_eq!(stage.count("terminate"), 2);
    assert!(stage.engine.state().ledger.claims.is_empty());
}

#[test]
fn surplus_claim_with_an_unknown_launch_result_is_not_forgotten() {
    let mut stage = stage(ManagementMode::Manage, 1);
    let held = stage.run(10, &["launch"]);
    stage.set_replicas(0);
    stage.run(10, &[]);
    assert_eq!(stage.engine.state().ledger.claims.len(), 1);
    let unknown = CommandResult::Failed { kind: FailureKind::Unknown, text: "timed out".into() };
    stage.event(Event::Answered(held[0].id, unknown));
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 1, "an instance may exist: the launch is repeated");
    assert_eq!(stage.count("terminate"), 1);
    assert!(stage.engine.state().ledger.claims.is_empty());
}

#[test]
fn lost_or_refused_node_of_a_static_pool_is_launched_again() {
    let mut stage = stage(ManagementMode::Manage, 1);
    let held = stage.run(10, &["launch"]);
    let Command::Launch(first) = &held[0].command else { panic!("a launch") };
    let refusals = vec![OfferingRefusal {
        offering: first.offerings[0].clone(),
        kind: RefusalKind::InsufficientCapacity,
    }];
    stage.event(Event::Answered(held[0].id, CommandResult::LaunchRefused(refusals)));
    stage.run(5, &[]);
    assert_eq!(stage.launches.len(), 1);
    assert!(!stage.launches[0].offerings.contains(&first.offerings[0]));
    stage.register_nodes(0..1);
    let instance = stage.instances.get_mut("i-0").expect("the instance was launched");
    instance.state = InstanceState::Terminated;
    stage.run(120, &[]);
    assert_eq!(stage.launches.len(), 2);
    assert_eq!(stage.remaining(), 1);
}

#[test]
fn static_pool_respects_limits_and_reports_missing_nodes_once() {
    let mut stage = stage(ManagementMode::Manage, 5);
    stage.change(|cluster| cluster.pools[1].limits.nodes = Some(2));
    stage.run(120, &[]);
    assert_eq!(stage.launches.len(), 2);
    let need = StaticDemand::Nodes("fixed".into());
    assert_eq!(stage.shortfalls(), [(need.clone(), 3, RejectionCode::Limit)]);
    assert_eq!(stage.met_demands(), []);
    stage.change(|cluster| cluster.pools[1].limits.nodes = None);
    stage.run(2, &[]);
    assert_eq!(stage.launches.len(), 5);
    assert_eq!(stage.met_demands(), std::slice::from_ref(&need));
    // No offering matches: the shortfall is reported with the reason, and retries change nothing.
    stage.change(|cluster| {
        let nowhere = Requirement::is_in(["nowhere"]);
        let pool = &mut cluster.pools[1];
        pool.requirements.add("topology.kubernetes.io/zone", nowhere);
        pool.replicas = Some(7);
    });
    stage.run(60, &[]);
    assert_eq!(stage.launches.len(), 5);
    assert_eq!(stage.shortfalls()[1..], [(need.clone(), 2, RejectionCode::Offering)]);
    // With fewer replicas no node is missing.
    stage.set_replicas(5);
    stage.run(20, &[]);
    assert_eq!(stage.met_demands(), [need.clone(), need]);
}

#[test]
fn unavailable_types_do_not_count_for_min_values() {
    let mut stage = stage(ManagementMode::Manage, 1);
    stage.change(|cluster| {
        let mut types = Requirement::is_in(["m6i.large", "m7i.large"]);
        types.min_values = Some(2);
        cluster.pools[1].requirements.add(INSTANCE_TYPE, types);
    });
    let shipped = Catalog::shipped();
    let unavailable_type = shipped.get("m7i.large").expect("a known type");
    let offerings = unavailable_type
        .offerings
        .iter()
        .map(|offering| UnavailableKey::from(offering.key(&unavailable_type.name)));
    let until = stage.now + SignedDuration::from_mins(3);
    stage.event(Event::HeldDown(offerings.collect(), until));
    stage.run(150, &[]);
    assert_eq!(stage.launches.len(), 0, "one type does not satisfy minValues");
    let need = StaticDemand::Nodes("fixed".into());
    assert_eq!(stage.shortfalls(), [(need.clone(), 1, RejectionCode::MinValues)]);
    stage.run(60, &[]);
    assert_eq!((stage.launches.len(), stage.met_demands()), (1, vec![need]));
    let launch = &stage.launches[0];
    let types: BTreeSet<&str> =
        launch.offerings.iter().map(|offering| offering.instance_type.as_str()).collect();
    assert_eq!(types.len(), 2);
}

#[test]
fn pods_use_nodes_of_a_static_pool_but_cause_no_launch() {
    let mut stage = stage(ManagementMode::Manage, 1);
    // Planned together: the pod fits on the node that is launched anyway.
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("a"))));
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 1);
    // Without another pool, a pod that fits nowhere causes no launch in the static pool.
    stage.change(|cluster| {
        cluster.pools.remove(0);
    });
    let mut huge = pending_pod("huge");
    huge.requests.cpu_milli = 90_000;
    stage.apply(WatchedObject::Pod(Box::new(huge)));
    stage.run(30, &[]);
    assert_eq!(stage.launches.len(), 1);
    let unplaced = |report: &&Report| matches!(report, Report::Unplaced(_));
    assert_eq!(stage.reports.iter().filter(unplaced).count(), 1);
}

#[test]
fn observe_mode_only_reports_the_nodes_of_a_static_pool() {
    let mut stage = stage(ManagementMode::Observe, 2);
    stage.run(300, &[]);
    assert_eq!(stage.commands, Vec::<String>::new());
    let planned = |report: &&Report| matches!(report, Report::ClaimPlanned { .. });
    assert_eq!(stage.reports.iter().filter(planned).count(), 2, "each claim is reported once");
}

#[test]
fn restart_launches_no_more_nodes_of_a_static_pool() {
    let mut stage = stage(ManagementMode::Manage, 2);
    stage.run(10, &[]);
    stage.register_nodes(0..1);
    let cluster = stage.engine.state().cluster.clone();
    let catalog = stage.engine.state().catalog.clone();
    let nodes: Vec<_> = stage.engine.state().objects.nodes.values().cloned().collect();
    stage.engine = Engine::new(8);
    stage.event(Event::ConfigChanged(cluster));
    stage.event(Event::CatalogChanged(catalog));
    stage.sync(nodes, vec![]);
    stage.run(60, &[]);
    assert_eq!(stage.launches.len(), 2);
    assert_eq!(stage.disrupted_nodes(), []);
}

/// An instance that EC2 does not list any more, and whose kubelet is silent, is terminated anyway;
/// the not-found result proves that it does not exist.
#[test]
fn unlisted_instance_with_a_silent_kubelet_is_replaced() {
    let mut stage = stage(ManagementMode::Manage, 1);
    stage.run(10, &[]);
    stage.register_nodes(0..1);
    stage.run(60, &[]);
    stage.instances.remove("i-0");
    assert_eq!(stage.run(150, &["terminate"]), [], "its kubelet still reports");
    let mut node = stage.only_node().clone();
    node.ready = false;
    stage.apply(WatchedObject::Node(Box::new(node)));
    let end = stage.run(10, &["terminate"]).remove(0);
    let (kind, text) = (FailureKind::Gone, "no such instance".to_owned());
    stage.event(Event::Answered(end.id, CommandResult::Failed { kind, text }));
    stage.run(30, &[]);
    assert_eq!(stage.launches.len(), 2);
    assert_eq!(stage.count("delete_node"), 1);
}
