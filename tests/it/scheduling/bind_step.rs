//! A cluster as kube-scheduler observes it at one step: nodes with their labels and the pods bound
//! until then. Evaluates whether a pod may be bound to a node under inter-pod constraints.
//!
//! Source: kube-scheduler's plugins InterPodAffinity and PodTopologySpread, and the pages
//! "Assigning Pods to Nodes" and "Pod Topology Spread Constraints" of its documentation.

use std::collections::BTreeMap;

use outrigger::model::affinity::{PodTerm, TopologySpread};
use outrigger::model::id::PodKey;
use outrigger::model::labels::Labels;
use outrigger::model::pod::Pod;
use outrigger::model::taint::Taint;

use super::fixture::World;
use super::rules::{
    Check, ensure, matches_node, selector_matches, spread_of, term_matches, tolerates_all,
};
use super::variants::PlanNode;

/// A node at one step.
#[derive(Clone, Debug)]
struct Node<'s> {
    name: &'s String,
    labels: &'s Labels,
    taints: &'s [Taint],
}

/// A pod that is bound.
#[derive(Clone, Debug)]
struct Bound<'s> {
    namespace: &'s str,
    labels: &'s Labels,
    anti_affinity: &'s [PodTerm],
    deleting: bool,
    at: usize,
}

/// The nodes and the pods that are bound to them.
#[derive(Clone, Debug)]
pub(crate) struct Scene<'s> {
    world: &'s World,
    nodes: Vec<Node<'s>>,
    bound: Vec<Bound<'s>>,
}

impl<'s> Scene<'s> {
    /// All nodes of a plan in their picked variants, before any pod of the plan is bound.
    pub(crate) fn new(world: &'s World, plan_nodes: &'s [PlanNode<'s>], picks: &[usize]) -> Self {
        let node = |(plan_node, pick): (&'s PlanNode<'s>, &usize)| Node {
            name: &plan_node.name,
            labels: &plan_node.variants[*pick].labels,
            taints: plan_node.taints,
        };
        let mut scene = Self {
            world,
            nodes: plan_nodes.iter().zip(picks).map(node).collect(),
            bound: Vec::new(),
        };
        for pod in &world.residents {
            let name = pod.node.as_ref().map(|name| name.as_str());
            // Pods of a node that does not exist are ignored.
            if let Some(at) = plan_nodes.iter().position(|plan_node| {
                plan_node.host.is_some() && Some(plan_node.name.as_str()) == name
            }) {
                scene.bind(pod, at);
            }
        }
        for (host, pods) in &world.promised {
            if let Some(at) = plan_nodes.iter().position(|plan_node| plan_node.host == Some(host)) {
                pods.iter().for_each(|pod| scene.bind(pod, at));
            }
        }
        // Daemon pods are bound before any other pod.
        for (at, (plan_node, pick)) in plan_nodes.iter().zip(picks).enumerate() {
            for daemon in &plan_node.variants[*pick].daemons {
                scene.bind(&world.daemons[*daemon].template, at);
            }
        }
        scene
    }

    /// Binds a pod without a check of the rules.
    pub(crate) fn bind(&mut self, pod: &'s Pod, at: usize) {
        self.bound.push(Bound {
            namespace: &pod.key.namespace,
            labels: &pod.labels,
            anti_affinity: &pod.anti_affinity,
            deleting: pod.deleting.is_some(),
            at,
        });
    }

    /// Checks whether the inter-pod constraints allow the scheduler to bind a pod to this node.
    pub(crate) fn check_pod(&self, pod: &Pod, at: usize) -> Check {
        self.check_bound_anti_affinity(pod, at)?;
        self.check_own_anti_affinity(pod, at)?;
        self.check_affinity(pod, at)?;
        self.check_spread(pod, at)
    }

    /// Whether two nodes are in one topology domain of a key.
    fn same_domain(&self, key: &str, one: usize, other: usize) -> bool {
        let value = self.nodes[one].labels.get(key);
        value.is_some() && value == self.nodes[other].labels.get(key)
    }

    fn term_matches_bound(&self, term: &PodTerm, other: &Bound<'_>) -> bool {
        term_matches(term, &self.world.namespaces, other.namespace, other.labels)
    }

    fn term_matches_pod(&self, term: &PodTerm, pod: &Pod) -> bool {
        term_matches(term, &self.world.namespaces, &pod.key.namespace, &pod.labels)
    }

    /// Checks that no bound pod has anti-affinity to this pod.
    fn check_bound_anti_affinity(&self, pod: &Pod, at: usize) -> Check {
        for other in &self.bound {
            for term in other.anti_affinity {
                let key = &term.topology_key;
                let disturbs =
                    self.same_domain(key, at, other.at) && self.term_matches_pod(term, pod);
                ensure(!disturbs, || {
                    let there = self.nodes[other.at].name;
                    format!("a pod on {there} has anti-affinity to {} by {key}", pod.key)
                })?;
            }
        }
        Ok(())
    }

    fn check_own_anti_affinity(&self, pod: &Pod, at: usize) -> Check {
        for term in &pod.anti_affinity {
            let key = &term.topology_key;
            let disturbs = |other: &&Bound<'_>| {
                self.same_domain(key, at, other.at) && self.term_matches_bound(term, other)
            };
            let other = self.bound.iter().find(disturbs);
            ensure(other.is_none(), || {
                format!("{} has anti-affinity to a bound pod by {key}", pod.key)
            })?;
        }
        Ok(())
    }

    /// Checks the affinity of a pod. Another pod satisfies it only if it matches all terms. A pod
    /// that matches its own terms may use any node with the topology keys, if no other matching
    /// pod is on a node with one of the keys.
    fn check_affinity(&self, pod: &Pod, at: usize) -> Check {
        let terms = &pod.affinity;
        if terms.is_empty() {
            return Ok(());
        }
        let company: Vec<&Bound<'_>> = self
            .bound
            .iter()
            .filter(|other| terms.iter().all(|term| self.term_matches_bound(term, other)))
            .collect();
        for term in terms {
            let has = self.nodes[at].labels.contains_key(&term.topology_key);
            ensure(has, || {
                let (name, key) = (self.nodes[at].name, &term.topology_key);
                format!("{} has affinity by {key}, which {name} does not have", pod.key)
            })?;
        }
        let near = |term: &PodTerm| {
            let key = &term.topology_key;
            company.iter().any(|other| self.same_domain(key, at, other.at))
        };
        if terms.iter().all(near) {
            return Ok(());
        }
        let in_reach = |other: &&Bound<'_>| {
            let labels = self.nodes[other.at].labels;
            terms.iter().any(|term| labels.contains_key(&term.topology_key))
        };
        let first = !company.iter().any(in_reach);
        let matches_itself = terms.iter().all(|term| self.term_matches_pod(term, pod));
        ensure(first && matches_itself, || {
            let name = self.nodes[at].name;
            format!("the affinity of {} is not satisfied on {name}", pod.key)
        })
    }

    fn check_spread(&self, pod: &Pod, at: usize) -> Check {
        let all = spread_of(self.world, pod);
        let hard: Vec<&TopologySpread> =
            all.iter().filter(|constraint| constraint.is_hard).collect();
        for constraint in &hard {
            let (key, name) = (&constraint.topology_key, self.nodes[at].name);
            let Some(here) = self.nodes[at].labels.get(key) else {
                return Err(format!("{} is spread by {key}, which {name} does not have", pod.key));
            };
            let counts = self.counts(pod, constraint, &hard);
            let least = counts.values().min().copied().unwrap_or(i64::MAX);
            let few = counts.len() < constraint.min_domains as usize;
            let least = if few { 0 } else { least };
            let itself = selector_matches(constraint.selector.as_ref(), &pod.labels);
            let there = counts.get(here.as_str()).copied().unwrap_or(0);
            let lead = (there + i64::from(itself)).saturating_sub(least);
            ensure(lead <= i64::from(constraint.max_skew), || {
                let key = format!("{key} {here}");
                format!("{} would raise the skew to {lead} in {key}: {counts:?}", pod.key)
            })?;
        }
        Ok(())
    }

    /// The number of pods that a spread counts in each of its domains.
    fn counts(
        &self,
        pod: &Pod,
        constraint: &TopologySpread,
        hard: &[&TopologySpread],
    ) -> BTreeMap<&str, i64> {
        let mut counts = BTreeMap::new();
        let mut eligible = vec![None; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            let all_keys = hard.iter().all(|other| node.labels.contains_key(&other.topology_key));
            let by_affinity =
                !constraint.honors_affinity || matches_node(pod, node.labels, node.name);
            let by_taints = !constraint.honors_taints || tolerates_all(pod, node.taints);
            if all_keys && by_affinity && by_taints {
                let value = node.labels[&constraint.topology_key].as_str();
                eligible[at] = Some(value);
                counts.entry(value).or_insert(0);
            }
        }
        // An empty selector would select everything, but the scheduler counts nothing for it.
        let selector = constraint.selector.as_ref();
        let selector = selector.filter(|selector| !selector.expressions().is_empty());
        for other in &self.bound {
            let counted = !other.deleting
                && other.namespace == pod.key.namespace
                && selector_matches(selector, other.labels);
            if let (true, Some(value)) = (counted, eligible[other.at]) {
                *counts.entry(value).or_insert(0) += 1;
            }
        }
        counts
    }
}

/// The result of a plan whose nodes have the picked variants, after all of its pods are bound.
#[derive(Debug)]
pub(crate) struct Outcome<'s> {
    world: &'s World,
    pub(crate) plan_nodes: &'s [PlanNode<'s>],
    order: &'s [PodKey],
    picks: &'s [usize],
    scene: Scene<'s>,
}

/// Binds one pod after the other, like kube-scheduler. All nodes exist from the start.
pub(crate) fn replay<'s>(
    world: &'s World,
    plan_nodes: &'s [PlanNode<'s>],
    order: &'s [PodKey],
    picks: &'s [usize],
) -> Result<Outcome<'s>, String> {
    let mut places: BTreeMap<&PodKey, (&Pod, usize)> = BTreeMap::new();
    for (at, plan_node) in plan_nodes.iter().enumerate() {
        places.extend(plan_node.pods.iter().map(|pod| (&pod.key, (*pod, at))));
    }
    let mut scene = Scene::new(world, plan_nodes, picks);
    for key in order {
        let (pod, at) = places[key];
        scene.check_pod(pod, at).map_err(|why| {
            let labels = &plan_nodes[at].variants[picks[at]].labels;
            format!("{why} (on {}, {labels:?})", plan_nodes[at].name)
        })?;
        scene.bind(pod, at);
    }
    Ok(Outcome { world, plan_nodes, order, picks, scene })
}

impl Outcome<'_> {
    /// Checks whether the inter-pod constraints allow one more pod on a node.
    pub(crate) fn check_pod(&self, pod: &Pod, at: usize) -> Check {
        self.scene.check_pod(pod, at)
    }

    /// Checks whether the plan allows one more node with one more pod. The new node may be a new
    /// topology domain, which affects all pods.
    pub(crate) fn check_pod_on_new_node(&self, pod: &Pod, plan_node: &PlanNode<'_>) -> Check {
        let mut plan_nodes: Vec<PlanNode<'_>> = self.plan_nodes.to_vec();
        let mut plan_node: PlanNode<'_> = plan_node.clone();
        plan_node.pods.push(pod);
        plan_nodes.push(plan_node);
        let order: Vec<PodKey> = self.order.iter().chain([&pod.key]).cloned().collect();
        let picks: Vec<usize> = self.picks.iter().copied().chain([0]).collect();
        replay(self.world, &plan_nodes, &order, &picks).map(drop)
    }
}
