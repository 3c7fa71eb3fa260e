//! Executes a cluster and its plan with kube-scheduler, and reports differences.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use jiff::Timestamp;
use kube::Client;
use outrigger::kubernetes_convert::offline_state;
use outrigger::model::id::PodKey;
use outrigger::model::labels::Labels;
use outrigger::model::pool::Pool;
use outrigger::scheduling::{RejectionCode, Solution, UnschedulablePod, solve};
use outrigger::state::State;
use outrigger::state::snapshot::NodeRef;
use serde_json::{Value, json};

use super::api::{Api, Key, Seen, key_of, text};
use super::extender::{Extender, Order};
use super::fixture::{
    AGENTS, Deployment, NAMESPACES, Owned, Tags, World, csi_node, daemon_pods, node,
};
use super::random_cluster::{RACK, classes};

/// The time limit for a decision of the scheduler, far more than it needs.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time in which the scheduler may revise a refusal: its cache of volumes may be stale.
const GRACE: Duration = Duration::from_millis(1500);
/// The maximum number of probe pods that count the scheduler's nodes.
const PROBES: usize = 200;

/// The scheduling gate of a pod until the test releases it.
const GATE: &str = "example.com/turn";

/// Codes that the scheduler does not know. `Effort` is not among them: nothing here reaches its
/// limit.
const OURS: [RejectionCode; 5] = [
    RejectionCode::Gang,
    RejectionCode::Priority,
    RejectionCode::ResourceClaims,
    RejectionCode::OfferingsUnavailable,
    RejectionCode::Limit,
];

/// The result of a random cluster.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Pods that were bound to the planned node.
    pub(super) bound: usize,
    /// Pods that the plan and the scheduler both reject.
    pub(super) refused: usize,
    /// Pods that are bound only if several new nodes exist.
    pub(super) several: usize,
    /// Pods that are planned once the nodes of the other pods are known, as their reason announces.
    pub(super) later: usize,
    /// Constraints of these pods and of their cluster.
    pub(super) tags: Tags,
}

/// Compares random clusters with the scheduler.
pub(super) struct Court {
    api: Api,
    extender: Extender,
    pods: Seen,
    /// Objects that all random clusters share.
    fixed: Vec<Value>,
}

/// The created objects of a random cluster, as stored by the API.
struct Made {
    nodes: Vec<Value>,
    daemons: Vec<Value>,
    pending: BTreeMap<Key, Value>,
    rest: Vec<Value>,
}

impl Court {
    /// Starts it on a plane whose scheduler calls this listener.
    pub(super) async fn open(client: Client, listener: std::net::TcpListener) -> Self {
        let api = Api(client);
        let pods = Seen::watch(&api.0, "Pod");
        provision(&api, Seen::watch(&api.0, "PersistentVolumeClaim"));
        let extender = Extender::serve(listener, pods.clone());
        let mut fixed = classes();
        fixed.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": AGENTS}}));
        for (name, team) in NAMESPACES {
            fixed.push(json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "labels": {"team": team}}}));
        }
        fixed.push(json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": "thick"}, "handler": "thick",
            "overhead": {"podFixed": {"cpu": "250m", "memory": "64Mi"}}}));
        for (name, value) in [("high", 1000), ("low", -10)] {
            fixed.push(json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": {"name": name}, "value": value}));
        }
        let fixed = api.create_all(&fixed).await;
        Self { api, extender, pods, fixed }
    }

    /// Plans a random cluster and compares the plan with the scheduler. `Err` describes a
    /// difference.
    pub(super) async fn judge(&self, world: &World) -> Result<Verdict, String> {
        let made = self.make(world).await;
        let verdict = self.carry_out(world, made).await;
        let own = NAMESPACES.iter().map(|(name, _)| *name);
        for namespace in own.chain([AGENTS]) {
            for kind in ["Pod", "PersistentVolumeClaim", "DaemonSet", "Service"] {
                self.api.clear(kind, namespace).await;
            }
        }
        for kind in ["Node", "CSINode", "PersistentVolume"] {
            self.api.clear(kind, "").await;
        }
        self.extender.forget();
        verdict
    }

    async fn make(&self, world: &World) -> Made {
        let standing: Vec<Value> = world.standing.iter().map(|own| own.node.clone()).collect();
        let nodes = self.api.create_all(&standing).await;
        let limits = world.standing.iter().filter_map(|own| own.csi.clone());
        let mut rest = self.api.create_all(&limits.collect::<Vec<_>>()).await;
        rest.extend(self.api.create_all(&world.services).await);
        let daemons = self.api.create_all(&world.daemons).await;
        let of_nodes = nodes.iter().flat_map(|node| daemon_pods(&daemons, node));
        rest.extend(self.api.create_all(&of_nodes.collect::<Vec<_>>()).await);

        let residents = world.standing.iter().flat_map(|own| &own.residents);
        let residents: Vec<&Owned> = residents.collect();
        let deployments = world.deployments.iter();
        let waiting: Vec<&Owned> = deployments.flat_map(|own| &own.pods).collect();
        let volumes = residents.iter().chain(&waiting).flat_map(|own| &own.before);
        for volume in self.api.create_all(&volumes.cloned().collect::<Vec<_>>()).await {
            rest.push(volume);
        }
        for claim in waiting.iter().flat_map(|own| &own.before) {
            // The API ignores the status at creation.
            if let Some(status) = claim.get("status") {
                let status = json!({"status": status});
                let patched = self.api.patch(claim, "/status", &status).await;
                rest.retain(|own| {
                    key_of(own) != key_of(&patched) || own["kind"] != patched["kind"]
                });
                rest.push(patched);
            }
        }
        for own in residents {
            let mut pod = self.api.create(&own.pod).await;
            if own.deleting {
                pod = self.api.delete(&pod, 300).await;
            }
            rest.push(pod);
        }
        let mut pending = BTreeMap::new();
        let gated = waiting.iter().map(|own| gated(&own.pod));
        let gated = self.api.create_all(&gated.collect::<Vec<_>>()).await;
        let claims = gated.iter().zip(&waiting);
        let claims: Vec<Value> = claims.flat_map(|(pod, own)| owned(own, pod)).collect();
        rest.extend(self.api.create_all(&claims).await);
        pending.extend(gated.into_iter().map(|pod| (key_of(&pod), pod)));
        Made { nodes, daemons, pending, rest }
    }

    async fn carry_out(&self, world: &World, made: Made) -> Result<Verdict, String> {
        let solution = planned(world, &made, &self.fixed);
        let mut nodes = made.nodes.clone();
        let mut promised: BTreeMap<Key, String> = BTreeMap::new();
        for (host, pods) in &solution.placed {
            let NodeRef::Node(name) = host else {
                return Err(format!("{host} is no node"));
            };
            promised.extend(pods.iter().map(|pod| (own(pod), name.to_string())));
        }
        let catalog = world.catalog();
        let mut chance = Rng::with_seed(world.seed);
        let mut planned = Vec::new();
        // Nodes whose type is not the planned one, but an alternative of the launch.
        let mut others: BTreeSet<String> = BTreeSet::new();
        for (at, claim) in solution.claims.iter().enumerate() {
            let name = format!("w{}-n{at}", world.seed);
            let chosen = chance.usize(0..claim.offerings.len());
            let (offering, _) = &claim.offerings[chosen];
            if chosen > 0 {
                others.insert(name.clone());
            }
            let pool = world.pools.iter().find(|pool| pool.name == claim.pool);
            let it = catalog.get(offering.instance_type.as_str());
            let there = (offering.zone.as_str(), offering.capacity_type);
            let (pool, it) = (pool.expect("a pool"), it.expect("a type"));
            planned.push(node(&name, pool, it, there, claim.labels.clone()));
            promised.extend(claim.pods.iter().map(|pod| (own(pod), name.clone())));
        }
        nodes.extend(self.add_nodes(&planned, &made.daemons).await);
        self.sees(world, nodes.len()).await;
        for pod in &solution.order {
            let key = own(pod);
            let node = &promised[&key];
            let promise = self.binds(&made.pending[&key], node).await;
            promise.map_err(|why| format!("{why}\n{}", places(&nodes)))?;
        }
        let bound =
            |key: &Key| self.pods.get(key).map(|pod| text(&pod, "/spec/nodeName").to_owned());
        let all = || promised.iter().all(|(key, node)| bound(key).as_ref() == Some(node));
        if self.pods.until(PATIENCE, || all().then_some(())).await.is_none() {
            let lost = promised.iter().find(|(key, node)| bound(key).as_ref() != Some(node));
            return Err(format!("{lost:?} is not bound after all"));
        }
        let mut verdict = Verdict { bound: solution.order.len(), ..Verdict::default() };
        self.refuses(world, (&made, &solution, nodes, &others), &mut verdict).await?;
        verdict.tags.extend(&world.tags);
        for pod in &solution.order {
            verdict.tags.extend(&deployment(world, &own(pod)).tags);
        }
        Ok(verdict)
    }

    /// Creates nodes with their daemon pods.
    async fn add_nodes(&self, nodes: &[Value], daemons: &[Value]) -> Vec<Value> {
        let limits = nodes.iter().filter_map(csi_node);
        self.api.create_all(&limits.collect::<Vec<_>>()).await;
        let made = self.api.create_all(nodes).await;
        let pods = made.iter().flat_map(|node| daemon_pods(daemons, node));
        self.api.create_all(&pods.collect::<Vec<_>>()).await;
        made
    }

    /// Deletes nodes with their daemon pods and CSINodes.
    async fn remove_nodes(&self, nodes: &[Value], daemons: &[Value]) {
        let pods = nodes.iter().flat_map(|node| daemon_pods(daemons, node));
        let limits = nodes.iter().filter_map(csi_node);
        let rest = pods.chain(limits).chain(nodes.iter().cloned());
        self.api.delete_all(&rest.collect::<Vec<_>>()).await;
    }

    /// Waits until the scheduler sees exactly this many nodes.
    async fn sees(&self, world: &World, count: usize) {
        for at in 0..PROBES {
            let name = format!("w{}-probe-{count}-{at}", world.seed);
            let probe = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "one", "name": name},
                "spec": {"nodeSelector": {"example.com/probe": "nowhere"},
                    "containers": [{"name": "main", "image": "main"}]}});
            let probe = self.api.create(&probe).await;
            let key = key_of(&probe);
            let no = || refusal(&self.pods.get(&key)?);
            let said = self.pods.until(PATIENCE, no).await;
            self.api.delete(&probe, 0).await;
            let said = said.expect("the scheduler looks at every pod");
            if said.starts_with(&format!("0/{count} nodes")) || count == 0 {
                return;
            }
        }
        panic!("the scheduler never saw {count} nodes");
    }

    async fn release(&self, pod: &Value) {
        let free = json!({"spec": {"schedulingGates": null}});
        self.api.patch(pod, "", &free).await;
    }

    /// Releases a pod, and checks that it passes all filters of the planned node.
    async fn binds(&self, pod: &Value, node: &str) -> Result<(), String> {
        let key = key_of(pod);
        self.extender.order(&key, Order::Only(node.to_owned()));
        self.release(pod).await;
        let passed = || {
            let passed = self.extender.passed(&key);
            passed.is_some_and(|nodes| nodes.contains(node))
        };
        let no = || refusal(&self.pods.get(&key)?);
        let said = || (passed() || no().is_some()).then_some(());
        self.pods.until(PATIENCE, said).await;
        if self.pods.until(GRACE, || passed().then_some(())).await.is_some() {
            return Ok(());
        }
        let elsewhere = self.extender.passed(&key);
        Err(format!(
            "{} is not bound to {node}: {}; it passed the filters of {elsewhere:?}",
            key.1,
            no().unwrap_or_default(),
        ))
    }

    /// Offers a new node of every kind to each unschedulable pod, and checks that the scheduler
    /// binds it to none.
    async fn refuses(
        &self,
        world: &World,
        (made, solution, nodes, others): (&Made, &Solution, Vec<Value>, &BTreeSet<String>),
        verdict: &mut Verdict,
    ) -> Result<(), String> {
        let mut fresh: Vec<Value> = Vec::new();
        for unplaced in &solution.unplaced {
            let Some(pools) = asked(world, unplaced) else {
                continue;
            };
            if fresh.is_empty() {
                fresh = self.add_nodes(&all_kinds(world), &made.daemons).await;
                self.sees(world, nodes.len() + fresh.len()).await;
            }
            let pod = &made.pending[&own(&unplaced.pod)];
            let of_pools = fresh.iter().filter(|node| {
                let labels = &node["metadata"]["labels"];
                pools.iter().any(|pool| labels["karpenter.sh/nodepool"] == pool.name.as_str())
            });
            let open = nodes.iter().filter(|node| node["spec"]["unschedulable"] != true);
            let names = of_pools.chain(open).map(|node| key_of(node).1).collect();
            self.extender.order(&key_of(pod), Order::Any(names));
            self.release(pod).await;
            if let Some(node) = self.goes_to(pod).await {
                // Several new nodes together may make the pod schedulable where a single one does
                // not.
                let rest = fresh.iter().filter(|own| key_of(own).1 != node).cloned();
                let rest: Vec<Value> = rest.collect();
                self.remove_nodes(&rest, &made.daemons).await;
                let left = nodes.len() + fresh.len() - rest.len();
                fresh.retain(|own| key_of(own).1 == node);
                self.api.delete(pod, 0).await;
                self.sees(world, left).await;
                let alone = self.tries_again(world, pod, &node).await;
                let foretold = unplaced
                    .reasons
                    .iter()
                    .any(|why| why.code == RejectionCode::WaitingForInFlightNodes);
                // The plan could not know that the node would be larger.
                let foretold = foretold || others.contains(&node);
                if foretold && self.is_planned_later(world, made, &nodes, pod) {
                    verdict.later += 1;
                } else if let Some(alone) = alone {
                    let name = key_of(pod).1;
                    fresh.extend(nodes);
                    return Err(format!(
                        "{name} is bound to {alone}, though {:?}\n{}",
                        unplaced.reasons,
                        places(&fresh)
                    ));
                } else {
                    verdict.several += 1;
                }
                self.remove_nodes(&fresh, &made.daemons).await;
                fresh.clear();
            } else {
                self.api.delete(pod, 0).await;
                verdict.refused += 1;
            }
            let mut deployments = world.deployments.iter();
            let has = |pods: &[Owned]| pods.iter().any(|own| key_of(&own.pod) == key_of(pod));
            let own = deployments.find(|deployment| has(&deployment.pods));
            verdict.tags.extend(own.into_iter().flat_map(|own| &own.tags));
        }
        Ok(())
    }

    /// Whether a pod is planned once the nodes of the plan exist, with their pods. Before that,
    /// their zones and the constraints there are unknown.
    fn is_planned_later(&self, world: &World, made: &Made, nodes: &[Value], pod: &Value) -> bool {
        let standing = |own: &Value| {
            let node = text(own, "/spec/nodeName");
            nodes.iter().any(|node_of| key_of(node_of).1 == node)
        };
        let there = self.pods.all().into_iter().filter(standing);
        let is_pod = |own: &&Value| own["kind"] == "Pod";
        let rest = made.rest.iter().filter(|own| !is_pod(own)).cloned();
        let limits = nodes.iter().filter(|node| !made.nodes.contains(node));
        let made = Made {
            nodes: nodes.to_vec(),
            daemons: made.daemons.clone(),
            pending: [(key_of(pod), pod.clone())].into(),
            rest: there.chain(rest).chain(limits.filter_map(csi_node)).collect(),
        };
        planned(world, &made, &self.fixed).unplaced.is_empty()
    }

    /// Creates the same pod again, with only this node allowed.
    async fn tries_again(&self, world: &World, pod: &Value, node: &str) -> Option<String> {
        let own = drawn(world, pod);
        let mut again = gated(&own.pod);
        again["metadata"]["name"] = format!("{}-again", key_of(pod).1).into();
        let key = key_of(&again);
        self.extender.order(&key, Order::Any([node.to_owned()].into()));
        let again = self.api.create(&again).await;
        self.api.create_all(&owned(own, &again)).await;
        self.release(&again).await;
        let home = self.goes_to(&again).await;
        self.api.delete(&again, 0).await;
        home
    }

    /// Returns the node to which the scheduler binds a pod. Returns `None` if it is unschedulable.
    async fn goes_to(&self, pod: &Value) -> Option<String> {
        let key = key_of(pod);
        let said = || {
            let seen = self.pods.get(&key)?;
            let node = text(&seen, "/spec/nodeName");
            let bound = (!node.is_empty()).then(|| Some(node.to_owned()));
            bound.or_else(|| refusal(&seen).map(|_| None))
        };
        let said = self.pods.until(PATIENCE, said).await;
        said.unwrap_or_else(|| panic!("the scheduler did not decide about {key:?}"))
    }
}

/// Returns the pod with a scheduling gate.
fn gated(pod: &Value) -> Value {
    let mut pod = pod.clone();
    pod["spec"]["schedulingGates"] = json!([{"name": GATE}]);
    pod
}

/// Returns the claims that a pod owns, renamed after the pod.
fn owned(own: &Owned, pod: &Value) -> Vec<Value> {
    let (drawn, name) = (key_of(&own.pod).1, key_of(pod).1);
    let claim = |claim: &Value| {
        let mut claim = claim.clone();
        let old = key_of(&claim).1;
        claim["metadata"]["name"] = old.replacen(&drawn, &name, 1).into();
        claim["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod",
            "name": name, "uid": pod["metadata"]["uid"], "controller": true}]);
        claim
    };
    own.owned.iter().map(claim).collect()
}

/// Describes the nodes, one per line.
fn places(nodes: &[Value]) -> String {
    let place = |node: &Value| {
        let labels = node["metadata"]["labels"].as_object();
        let labels = labels.into_iter().flatten();
        let short = labels.map(|(key, value)| {
            let key = key.rsplit('/').next().unwrap_or_default();
            format!("{key}={}", value.as_str().unwrap_or_default())
        });
        let (spec, has) = (&node["spec"], &node["status"]["allocatable"]);
        format!("{} {spec} {has}", short.collect::<Vec<_>>().join(" "))
    };
    nodes.iter().map(place).collect::<Vec<_>>().join("\n")
}

fn own(pod: &PodKey) -> Key {
    (pod.namespace.clone(), pod.name.clone())
}

/// Returns the deployment of a pod.
fn deployment<'w>(world: &'w World, pod: &Key) -> &'w Deployment {
    let has = |own: &&Deployment| own.pods.iter().any(|own| key_of(&own.pod) == *pod);
    let own = world.deployments.iter().find(has);
    own.expect("every pending pod is part of a deployment")
}

/// Returns the generated form of a pending pod.
fn drawn<'w>(world: &'w World, pod: &Value) -> &'w Owned {
    let pods = &deployment(world, &key_of(pod)).pods;
    let own = pods.iter().find(|own| key_of(&own.pod) == key_of(pod));
    own.expect("a pod of its deployment")
}

/// Returns the scheduler's message about an unschedulable pod.
fn refusal(pod: &Value) -> Option<String> {
    let conditions = pod["status"]["conditions"].as_array()?;
    let mut conditions = conditions.iter();
    let no = conditions.find(|own| {
        own["type"] == "PodScheduled"
            && own["status"] == "False"
            && own["reason"] == "Unschedulable"
    })?;
    Some(text(no, "/message").to_owned())
}

/// Plans a random cluster as stored by the API.
fn planned(world: &World, made: &Made, fixed: &[Value]) -> Solution {
    let waiting = made.pending.values().map(|pod| {
        let mut pod = pod.clone();
        if let Some(spec) = pod["spec"].as_object_mut() {
            spec.remove("schedulingGates");
        }
        pod["status"] = json!({});
        pod
    });
    let parts = [fixed, &made.nodes, &made.daemons, &made.rest];
    let items: Vec<Value> = parts.into_iter().flatten().cloned().chain(waiting).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let objects = offline_state::parse(&list.to_string()).expect("the API's own objects");
    let now = Timestamp::from_second(2_000_000_000).expect("a time");
    let (cluster, catalog) = (Arc::new(world.cluster()), Arc::new(world.catalog()));
    let state = State::offline(cluster, catalog, objects, now);
    let solution = solve(&state.snapshot(now), now);
    let answers = solution.order.len() + solution.unplaced.len();
    assert_eq!(answers, made.pending.len(), "every pod has a result");
    solution
}

/// Returns the pools whose nodes must be offered to an unschedulable pod. Returns `None` if the
/// scheduler does not know the reason.
fn asked<'w>(world: &'w World, unplaced: &UnschedulablePod) -> Option<Vec<&'w Pool>> {
    let of_itself = |code: RejectionCode| {
        let mut reasons = unplaced.reasons.iter();
        reasons.any(|why| why.pool.is_none() && why.code == code)
    };
    if OURS.into_iter().any(of_itself) {
        return None;
    }
    let judged = |pool: &&Pool| {
        let own = unplaced.reasons.iter().find(|why| why.pool.as_ref() == Some(&pool.name));
        own.is_none_or(|why| !OURS.contains(&why.code))
    };
    Some(world.pools.iter().filter(judged).collect())
}

/// Returns a new node of every pool, type, zone and capacity type.
fn all_kinds(world: &World) -> Vec<Value> {
    let catalog = world.catalog();
    let mut nodes = Vec::new();
    for pool in &world.pools {
        let allows = |key: &str, value: &str| {
            let own = pool.requirements.get(key);
            own.is_none_or(|own| own.allows_value(value))
        };
        let racks = pool.requirements.get(RACK).and_then(|own| own.values());
        let racks: Vec<&String> = racks.into_iter().flatten().collect();
        for it in catalog.types() {
            for offering in it.offerings.iter().filter(|own| own.available) {
                let (zone, bought) = (offering.zone.as_str(), offering.capacity_type);
                if !allows("topology.kubernetes.io/zone", zone)
                    || !allows("karpenter.sh/capacity-type", bought.as_str())
                {
                    continue;
                }
                let at = nodes.len();
                let mut labels = Labels::new();
                if !racks.is_empty() {
                    labels.insert(RACK.to_owned(), racks[at % racks.len()].clone());
                }
                let name = format!("w{}-f{at}", world.seed);
                nodes.push(node(&name, pool, it, (zone, bought), labels));
            }
        }
    }
    nodes
}

/// Creates the volumes for which the scheduler has chosen a node, as a CSI driver does.
fn provision(api: &Api, claims: Seen) {
    let api = api.clone();
    tokio::spawn(async move {
        let mut done: BTreeSet<String> = BTreeSet::new();
        loop {
            let wanted = || {
                let chosen = |own: &Value| {
                    let node =
                        own["metadata"]["annotations"].get("volume.kubernetes.io/selected-node");
                    node.is_some() && text(own, "/spec/volumeName").is_empty()
                };
                let mut all = claims.all().into_iter();
                all.find(|own| chosen(own) && !done.contains(text(own, "/metadata/uid")))
            };
            let Some(claim) = claims.until(Duration::from_secs(3600), wanted).await else {
                continue;
            };
            let uid = text(&claim, "/metadata/uid").to_owned();
            let (namespace, name) = key_of(&claim);
            let volume = json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": format!("pvc-{uid}")},
                "spec": {"accessModes": claim["spec"]["accessModes"],
                    "capacity": {"storage": "1Gi"},
                    "storageClassName": claim["spec"]["storageClassName"],
                    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                        "namespace": namespace, "name": name, "uid": uid},
                    "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": uid}},
            });
            let bound = json!({
                "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {"volumeName": volume["metadata"]["name"]},
            });
            // A claim that was deleted in the meantime needs no volume.
            let volumes = "/api/v1/persistentvolumes";
            if api.call("POST", volumes, &volume).await.is_ok() {
                let claim = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
                drop(api.call("PATCH", &claim, &bound).await);
                let phase = json!({"status": {"phase": "Bound"}});
                drop(api.call("PATCH", &format!("{claim}/status"), &phase).await);
            }
            done.insert(uid);
        }
    });
}
