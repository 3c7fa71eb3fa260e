//! The nodes of a plan with their possible variants: an existing node has one, a claim has one for
//! each offering.

use std::collections::BTreeMap;

use outrigger::model::id::{ObjectKey, PodKey};
use outrigger::model::instance::{InstanceType, Offering, OfferingKey, Price};
use outrigger::model::labels::{HOSTNAME, Labels, NODE_CLASS, OF_OFFERINGS, POOL, is_well_known};
use outrigger::model::pod::Pod;
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::taint::Taint;
use outrigger::scheduling::{NewNodeClaim, Solution};
use outrigger::state::snapshot::{ExistingNode, NodeRef};

use super::fixture::{NOW, World};
use super::rules::{
    Check, Ports, allows, ensure, matches_node, port_conflict, requirements_hold, shortage,
    tolerates_all, total_requests,
};

/// A possible variant of a node.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub(crate) labels: Labels,
    /// The resources that are free for pods.
    pub(crate) free: Resources,
    /// Host ports that are in use.
    pub(crate) ports: Ports,
    /// The daemons that will run on it and are not bound yet, by their index in the world.
    pub(crate) daemons: Vec<usize>,
}

/// An existing node, or a planned one.
#[derive(Clone, Debug)]
pub(crate) struct PlanNode<'w> {
    /// The existing node; `None` for a planned one.
    pub(crate) host: Option<&'w NodeRef>,
    /// The name of the Node.
    pub(crate) name: String,
    pub(crate) taints: &'w [Taint],
    /// Whether it accepts pods.
    pub(crate) open: bool,
    /// Its possible variants, at least one. The cheapest variant of a claim is the first.
    pub(crate) variants: Vec<Variant>,
    /// The pods that the plan places on it.
    pub(crate) pods: Vec<&'w Pod>,
}

/// The pending pods by their keys.
pub(crate) type Pending<'w> = BTreeMap<&'w PodKey, &'w Pod>;

pub(crate) fn pending(world: &World) -> Pending<'_> {
    world.pods.iter().map(|pod| (&pod.key, pod)).collect()
}

/// All nodes of a plan: existing nodes first, then claims.
pub(crate) fn plan_nodes<'w>(
    world: &'w World,
    solution: &'w Solution,
) -> Result<Vec<PlanNode<'w>>, String> {
    let pending = pending(world);
    let pods = |keys: &'w [PodKey]| -> Vec<&'w Pod> {
        keys.iter().filter_map(|key| pending.get(key).copied()).collect()
    };
    let mut all = Vec::new();
    for room in &world.rooms {
        let here = solution.placed.iter().filter(|placement| placement.0 == room.host);
        all.push(existing_plan_node(
            world,
            room,
            here.flat_map(|placement| pods(&placement.1)).collect(),
        ));
    }
    for (at, claim) in solution.claims.iter().enumerate() {
        all.push(claim_plan_node(world, claim, at, pods(&claim.pods))?);
    }
    Ok(all)
}

fn existing_plan_node<'w>(
    world: &World,
    room: &'w ExistingNode,
    pods: Vec<&'w Pod>,
) -> PlanNode<'w> {
    let name = match &room.host {
        NodeRef::Node(name) => name.to_string(),
        // The name of the node is unknown, but it is unique.
        NodeRef::Claim(id) => format!("node-of-{id}"),
    };
    let mut all = vec![Labels::new()];
    for (key, wanted) in room.labels.iter() {
        let mut values: Vec<Option<String>> = Vec::new();
        values.extend(wanted.values().into_iter().flatten().cloned().map(Some));
        if values.is_empty() {
            values.push(None);
        }
        let with = |value: &Option<String>, labels: &Labels| {
            let mut labels = labels.clone();
            labels.extend(value.iter().map(|value| (key.to_owned(), value.clone())));
            labels
        };
        let each = |labels: &Labels| -> Vec<Labels> {
            values.iter().map(|value| with(value, labels)).collect()
        };
        all = all.iter().flat_map(each).collect();
    }
    let coming = |key: &ObjectKey| world.daemons.iter().position(|set| set.key == *key);
    let daemons = room.daemons.iter().filter_map(|(key, _)| coming(key));
    let daemons: Vec<usize> = daemons.collect();
    let variant = |mut labels: Labels| {
        if matches!(room.host, NodeRef::Claim(_)) {
            let hostname = labels.entry(HOSTNAME.to_owned());
            hostname.or_insert_with(|| name.clone());
        }
        Variant {
            labels,
            free: room.free.clone(),
            ports: room.host_ports.clone(),
            daemons: daemons.clone(),
        }
    };
    PlanNode {
        host: Some(&room.host),
        taints: &room.taints,
        open: room.open,
        variants: all.into_iter().map(variant).collect(),
        pods,
        name,
    }
}

fn claim_plan_node<'w>(
    world: &'w World,
    claim: &'w NewNodeClaim,
    at: usize,
    pods: Vec<&'w Pod>,
) -> Result<PlanNode<'w>, String> {
    let pool = world.cluster.pool(claim.pool.as_str());
    let pool = pool.ok_or_else(|| format!("there is no pool {}", claim.pool))?;
    let name = format!("new-{at}");
    let mut variants = Vec::new();
    for (key, _) in &claim.offerings {
        variants.push(offering_variant(world, pool, key, &claim.labels, &name)?);
    }
    ensure(!variants.is_empty(), || format!("{name} has no offering"))?;
    Ok(PlanNode { host: None, taints: &pool.taints, open: true, variants, pods, name })
}

/// The variant of a node of a pool that is launched with this offering and gets these labels in
/// addition to those of its pool, or the reason why such a node is impossible.
pub(crate) fn offering_variant(
    world: &World,
    pool: &Pool,
    key: &OfferingKey,
    more: &Labels,
    name: &str,
) -> Result<Variant, String> {
    let it = world.catalog.get(key.instance_type.as_str());
    let it = it.ok_or_else(|| format!("there is no type {}", key.instance_type))?;
    let offering = world.catalog.offering(key);
    let offering = offering.ok_or_else(|| format!("{key} is not offered"))?;
    let had = offering.available && !world.holds.is_held(None, key, NOW);
    ensure(had, || format!("{key} is unavailable"))?;
    let labels = node_labels(pool, it, offering, more, name)?;
    for (label, wanted) in pool.requirements.iter() {
        let value = labels.get(label);
        ensure(allows(wanted, value), || {
            format!("{key} has the label {label} {value:?}, the pool requires {wanted}")
        })?;
    }
    let runs = |pod: &Pod| {
        tolerates_all(pod, &pool.taints) && matches_node(pod, &labels, &name.to_owned())
    };
    let all = world.daemons.iter().map(|set| &set.template).enumerate();
    let daemons: Vec<(usize, &Pod)> = all.filter(|(_, pod)| runs(pod)).collect();
    let pods = daemons.iter().map(|(_, pod)| *pod);
    let mut free = it.allocatable.clone();
    free.subtract(&total_requests(pods.clone(), &BTreeMap::new()));
    Ok(Variant {
        ports: pods.flat_map(|pod| pod.host_ports.clone()).collect(),
        daemons: daemons.into_iter().map(|(at, _)| at).collect(),
        labels,
        free,
    })
}

/// The labels of a node: those of its pool, of its instance, and of the claim. They must not
/// contradict each other, and the claim may only add labels that the pool defines.
fn node_labels(
    pool: &Pool,
    it: &InstanceType,
    offering: &Offering,
    more: &Labels,
    name: &str,
) -> Result<Labels, String> {
    let ours = pool.labels.iter();
    let mut all: Vec<(&str, &str)> = ours.map(|(k, v)| (k.as_str(), v.as_str())).collect();
    for (label, wanted) in it.requirements.iter() {
        let values = wanted.values().filter(|values| values.len() == 1);
        all.extend(values.into_iter().flatten().map(|v| (label, v.as_str())));
    }
    let bought = OF_OFFERINGS.into_iter();
    all.extend(bought.filter_map(|label| Some((label, offering.label_value(label)?))));
    all.push((POOL, pool.name.as_str()));
    all.push((HOSTNAME, name));
    all.extend(pool.node_class.iter().map(|class| (NODE_CLASS, class.as_str())));
    for (label, value) in more {
        let had = all.iter().any(|(existing, _)| existing == label);
        let is_defined = had || pool.requirements.get(label).is_some();
        ensure(is_defined, || format!("the pool does not define {label}"))?;
        all.push((label, value));
    }
    let mut labels = Labels::new();
    for (label, value) in all {
        let old = labels.insert(label.to_owned(), value.to_owned());
        ensure(old.as_deref().is_none_or(|old| old == value), || {
            format!("{} has the label {label} {value:?}, which must be {old:?}", it.name)
        })?;
    }
    Ok(labels)
}

/// All combinations of values of the custom labels that the pool requires.
fn custom_label_sets(pool: &Pool) -> Vec<Labels> {
    let ours = |key: &str| !pool.labels.contains_key(key) && !is_well_known(key);
    let mut all = vec![Labels::new()];
    for (key, wanted) in pool.requirements.iter().filter(|(key, _)| ours(key)) {
        let values: Vec<&String> = wanted.values().into_iter().flatten().collect();
        let with = |labels: &Labels| -> Vec<Labels> {
            let one = |value: &&String| {
                let mut labels = labels.clone();
                labels.insert(key.to_owned(), (*value).clone());
                labels
            };
            values.iter().map(one).collect()
        };
        if !values.is_empty() {
            all = all.iter().flat_map(with).collect();
        }
    }
    all
}

/// A node that could be launched with one offering.
#[derive(Clone, Debug)]
pub(crate) struct PossibleNode<'w> {
    pub(crate) pool: &'w Pool,
    pub(crate) offering: (OfferingKey, Price),
    /// Its labels in addition to those of its pool and type.
    pub(crate) more: Labels,
    pub(crate) plan_node: PlanNode<'w>,
}

/// Every node that could be launched, the cheapest first.
pub(crate) fn possible_nodes(world: &World) -> Vec<PossibleNode<'_>> {
    let name = "fresh";
    let mut all = Vec::new();
    for pool in &world.cluster.pools {
        let choices = custom_label_sets(pool);
        for it in world.catalog.types() {
            for (offering, more) in it
                .offerings
                .iter()
                .flat_map(|offering| choices.iter().map(move |more| (offering, more)))
            {
                let key = offering.key(&it.name);
                let Ok(variant) = offering_variant(world, pool, &key, more, name) else {
                    continue;
                };
                let plan_node = PlanNode {
                    host: None,
                    name: name.to_owned(),
                    taints: &pool.taints,
                    open: true,
                    variants: vec![variant],
                    pods: Vec::new(),
                };
                all.push(PossibleNode {
                    pool,
                    offering: (key, offering.price),
                    more: more.clone(),
                    plan_node,
                });
            }
        }
    }
    all.sort_by_key(|possible| possible.offering.1);
    all
}

impl PlanNode<'_> {
    /// Checks whether this variant of the node accepts these pods, without inter-pod constraints.
    pub(crate) fn check_accepts(&self, world: &World, variant: &Variant, pods: &[&Pod]) -> Check {
        let name = &self.name;
        ensure(self.open, || format!("{name} accepts no pods"))?;
        for pod in pods {
            let key = &pod.key;
            ensure(tolerates_all(pod, self.taints), || {
                format!("{key} does not tolerate a taint of {name}")
            })?;
            ensure(matches_node(pod, &variant.labels, name), || {
                format!("{key} requires other labels than those of {name}: {:?}", variant.labels)
            })?;
            check_volumes(world, pod, variant, name)?;
        }
        if let Some(short) =
            shortage(&total_requests(pods.iter().copied(), &world.mounts), &variant.free)
        {
            return Err(format!("{name} has too little {short}"));
        }
        let clash = port_conflict(&variant.ports, pods.iter().copied());
        ensure(clash.is_none(), || format!("{name} has the host port {} twice", clash.unwrap_or(0)))
    }
}

/// Checks whether the volumes of a pod can be used on a node.
fn check_volumes(world: &World, pod: &Pod, variant: &Variant, name: &String) -> Check {
    let Some(volumes) = world.mounts.get(&pod.key) else {
        return Ok(());
    };
    let mut alternatives = volumes.alternatives.iter();
    let reached = volumes.alternatives.is_empty()
        || alternatives.any(|wanted| requirements_hold(wanted, &variant.labels, name));
    ensure(volumes.fault.is_none() && reached, || {
        format!("{} cannot use its volumes on {name}", pod.key)
    })
}
