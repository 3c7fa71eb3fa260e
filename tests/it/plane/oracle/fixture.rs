//! The parts of a random cluster: user-written manifests, and the pools for them.

use std::collections::BTreeSet;
use std::fmt;

use outrigger::catalog::{self, Catalog};
use outrigger::model::affinity::TopologySpread;
use outrigger::model::cluster::Cluster;
use outrigger::model::instance::{CapacityType, InstanceType};
use outrigger::model::labels::{
    ATTACHABLE, CAPACITY_TYPE, HOSTNAME, INITIALIZED, POOL, REGISTERED, ZONE,
};
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::Requirement;
use outrigger::model::taint::Taint;
use serde_json::{Map, Value, json};

/// Namespaces of pods with their team.
pub(super) const NAMESPACES: [(&str, &str); 3] = [("one", "x"), ("two", "y"), ("three", "x")];

/// The namespace of daemons. It has no team, so that no selector of a random cluster matches it.
pub(super) const AGENTS: &str = "agents";

/// The CSI driver of all volumes.
pub(super) const DRIVER: &str = "ebs.csi.aws.com";

/// A numeric label of instance types.
pub(super) const CPU: &str = "karpenter.k8s.aws/instance-cpu";

/// Names of constraints.
pub(super) type Tags = BTreeSet<&'static str>;

/// A pod with its volumes.
#[derive(Clone, Debug, Default)]
pub(super) struct Owned {
    pub(super) pod: Value,
    /// Volumes and claims that exist before it.
    pub(super) before: Vec<Value>,
    /// Claims that it owns.
    pub(super) owned: Vec<Value>,
    /// Whether it is being deleted.
    pub(super) deleting: bool,
}

/// Equal pods, with the names of their constraints.
#[derive(Clone, Debug, Default)]
pub(super) struct Deployment {
    pub(super) tags: Tags,
    pub(super) pods: Vec<Owned>,
}

/// An existing node with its pods.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) node: Value,
    pub(super) csi: Option<Value>,
    pub(super) residents: Vec<Owned>,
}

/// A cluster with pending pods.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) seed: u64,
    /// The constraints of the cluster.
    pub(super) tags: Tags,
    pub(super) pools: Vec<Pool>,
    pub(super) types: Value,
    pub(super) daemons: Vec<Value>,
    /// Services that select pods without spread constraints, for the default spread.
    pub(super) services: Vec<Value>,
    pub(super) standing: Vec<Standing>,
    pub(super) deployments: Vec<Deployment>,
}

impl World {
    pub(super) fn cluster(&self) -> Cluster {
        // As `tests/plane/up` configures the scheduler.
        let zones = TopologySpread {
            selector: None,
            topology_key: ZONE.to_owned(),
            max_skew: 1,
            min_domains: 1,
            honors_affinity: true,
            honors_taints: false,
            is_hard: true,
        };
        let mut cluster = Cluster { pools: self.pools.clone(), ..Cluster::default() };
        cluster.scheduling.default_spread = vec![zones];
        cluster
    }

    /// Returns the types with a numeric label that pods can compare with: pods can use only labels
    /// that types have or that their pool names (spec/scheduling.md §2.2).
    pub(super) fn catalog(&self) -> Catalog {
        let read = catalog::parse("types.json", &self.types.to_string());
        let types = read.expect("instance types");
        let with_cpu = |it: &InstanceType| {
            let own = it.requirements.iter().filter(|(key, _)| *key != CPU);
            let own = own.map(|(key, value)| (key, value.clone()));
            let cpu = (it.capacity.cpu_milli / 1000).to_string();
            let cpu = (CPU, Requirement::is_in([cpu]));
            InstanceType { requirements: own.chain([cpu]).collect(), ..it.clone() }
        };
        Catalog::new(types.types().map(with_cpu))
    }
}

impl fmt::Display for World {
    /// Writes one object per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for pool in &self.pools {
            let (name, wants, labels) = (&pool.name, &pool.requirements, &pool.labels);
            writeln!(f, "pool {name}: {wants}; {labels:?}; {:?}", pool.taints)?;
        }
        for it in self.catalog().types() {
            let sold = it.offerings.iter().filter(|own| own.available);
            let sold = sold.map(|own| format!("{} {}", own.zone, own.capacity_type.as_str()));
            let sold: Vec<String> = sold.collect();
            writeln!(f, "type {}: {}; {}", it.name, it.allocatable, sold.join(", "))?;
        }
        for own in self.daemons.iter().chain(&self.services) {
            writeln!(f, "{own}")?;
        }
        let residents = self.standing.iter().flat_map(|own| &own.residents);
        let waiting = self.deployments.iter().flat_map(|own| &own.pods);
        for own in residents.chain(waiting) {
            for object in own.before.iter().chain(&own.owned).chain([&own.pod]) {
                writeln!(f, "{object}")?;
            }
        }
        Ok(())
    }
}

pub(super) fn amounts(resources: &Resources) -> Value {
    let amount = |(name, amount): (&str, i64)| {
        let unit = if name == "cpu" { "m" } else { "" };
        (name.to_owned(), format!("{amount}{unit}").into())
    };
    Value::Object(resources.iter().map(amount).collect())
}

pub(super) fn taint(taint: &Taint) -> Value {
    json!({"key": taint.key, "value": taint.value, "effect": taint.effect.as_str()})
}

/// Returns an initialized node of a pool with this type, zone, capacity type and further labels.
pub(super) fn node(
    name: &str,
    pool: &Pool,
    it: &InstanceType,
    (zone, capacity_type): (&str, CapacityType),
    own: impl IntoIterator<Item = (String, String)>,
) -> Value {
    let mut labels = Map::new();
    let mut set = |key: &str, value: &str| drop(labels.insert(key.to_owned(), value.into()));
    for (key, value) in it.requirements.iter() {
        if let Some(values) = value.values().filter(|values| values.len() == 1) {
            set(key, values.first().map_or("", String::as_str));
        }
    }
    for (key, value) in pool.labels.clone().into_iter().chain(own) {
        set(&key, &value);
    }
    for (key, value) in [
        (ZONE, zone),
        ("topology.ebs.csi.aws.com/zone", zone),
        (CAPACITY_TYPE, capacity_type.as_str()),
        (POOL, pool.name.as_str()),
        (HOSTNAME, name),
        (REGISTERED, "true"),
        (INITIALIZED, "true"),
    ] {
        set(key, value);
    }
    let taints: Vec<Value> = pool.taints.iter().map(taint).collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {
            "capacity": amounts(&it.capacity),
            "allocatable": amounts(&it.allocatable),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// Returns the CSINode of a node whose type limits the number of volumes.
pub(super) fn csi_node(node: &Value) -> Option<Value> {
    let name = &node["metadata"]["name"];
    let most = &node["status"]["allocatable"][format!("{ATTACHABLE}{DRIVER}")];
    let most: u32 = most.as_str()?.parse().expect("a number of volumes");
    Some(limits(name, most))
}

/// Returns a CSINode with this limit of volumes.
pub(super) fn limits(node: &Value, most: u32) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": node, "allocatable": {"count": most}}]},
    })
}

/// Returns the pods of these DaemonSets on a node, bound to it. An independent implementation of
/// the DaemonSet controller: it compares node selector, required node affinity and tolerations with
/// the node, and nothing else.
pub(super) fn daemon_pods(sets: &[Value], node: &Value) -> Vec<Value> {
    let runs = |set: &&Value| {
        let spec = &set["spec"]["template"]["spec"];
        let labels = &node["metadata"]["labels"];
        let selected = spec["nodeSelector"].as_object();
        let mut selected = selected.into_iter().flatten();
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let required = &spec["affinity"]["nodeAffinity"][required];
        let terms = required["nodeSelectorTerms"].as_array();
        selected.all(|(key, value)| labels[key] == *value)
            && terms.is_none_or(|terms| terms.iter().any(|term| matches(term, labels)))
            && node["spec"]["taints"].as_array().is_none_or(|taints| {
                let tolerations = spec["tolerations"].as_array();
                let tolerations = tolerations.map_or(&[][..], Vec::as_slice);
                let hard = taints.iter().filter(|own| own["effect"] != "PreferNoSchedule");
                hard.into_iter().all(|taint| tolerations.iter().any(|own| tolerates(own, taint)))
            })
    };
    let pod = |set: &Value| {
        let template = &set["spec"]["template"];
        let mut spec = template["spec"].clone();
        let name = &node["metadata"]["name"];
        spec["nodeName"] = name.clone();
        let set_name = set["metadata"]["name"].as_str().unwrap_or_default();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": set["metadata"]["namespace"],
                "name": format!("{set_name}-{}", name.as_str().unwrap_or_default()),
                "labels": template["metadata"]["labels"],
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "DaemonSet", "controller": true,
                    "name": set_name, "uid": set["metadata"]["uid"],
                }],
            },
            "spec": spec,
        })
    };
    sets.iter().filter(runs).map(pod).collect()
}

fn matches(term: &Value, labels: &Value) -> bool {
    let mut all = term["matchExpressions"].as_array().into_iter().flatten();
    all.all(|own| {
        let label = labels.get(own["key"].as_str().unwrap_or_default());
        let values = own["values"].as_array();
        let listed = |label| values.is_some_and(|values| values.contains(label));
        match own["operator"].as_str() {
            Some("In") => label.is_some_and(listed),
            Some("NotIn") => !label.is_some_and(listed),
            Some("Exists") => label.is_some(),
            Some("DoesNotExist") => label.is_none(),
            other => panic!("unknown operator of a daemon: {other:?}"),
        }
    })
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let given = |field: &str| toleration[field].as_str().filter(|own| !own.is_empty());
    let value = taint["value"].as_str().unwrap_or_default();
    given("key").is_none_or(|key| taint["key"] == key)
        && given("effect").is_none_or(|effect| taint["effect"] == effect)
        && (given("operator") == Some("Exists") || given("value").unwrap_or_default() == value)
}
