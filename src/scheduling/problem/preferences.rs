//! The constraints that distinguish pods, and their preferences, which are relaxed one by one.

use std::collections::BTreeSet;

use crate::model::affinity::{PodTerm, Preferred, TopologySpread};
use crate::model::cluster::PreferencePolicy;
use crate::model::labels::Labels;
use crate::model::pod::Pod;
use crate::model::requirement::Requirements;
use crate::model::taint::Toleration;
use crate::scheduling::problem::daemon_constraints::HostPort;
use crate::scheduling::problem::default_constraints::DefaultConstraints;
use crate::scheduling::problem::pod_constraints::{PodConstraints, PodGroups};
use crate::state::snapshot::VolumeRequirements;

/// Maximum number of preferences relaxed one by one; the rest is relaxed together.
const LEVELS_MAX: usize = 24;

/// The properties that distinguish pods, except resources and labels, most selective first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodShapeKey<'a> {
    pub(super) spread: &'a [TopologySpread],
    pub(super) affinity: &'a [PodTerm],
    pub(super) anti_affinity: &'a [PodTerm],
    pub(super) preferred_affinity: &'a [Preferred<PodTerm>],
    pub(super) preferred_anti_affinity: &'a [Preferred<PodTerm>],
    /// The ordinal of the pod's default topology spread, if the pod has none of its own.
    pub(super) by_default: Option<usize>,
    /// The namespace if it is relevant for topology spread, otherwise empty.
    pub(super) namespace: &'a str,
    pub(super) node_affinity: &'a [Requirements],
    pub(super) preferred_nodes: &'a [Preferred<Requirements>],
    pub(super) tolerations: &'a [Toleration],
    pub(super) volumes: &'a [Requirements],
    pub(super) node_selector: &'a Labels,
    pub(super) ports: &'a BTreeSet<HostPort>,
}

impl<'a> PodShapeKey<'a> {
    pub(super) fn from_pod(
        pod: &'a Pod,
        mounts: Option<&'a VolumeRequirements>,
        by_default: Option<usize>,
    ) -> Self {
        Self {
            namespace: if pod.spread.is_empty() && by_default.is_none() {
                ""
            } else {
                &pod.key.namespace
            },
            node_selector: &pod.node_selector,
            node_affinity: &pod.node_affinity,
            preferred_nodes: &pod.preferred_nodes,
            tolerations: &pod.tolerations,
            ports: &pod.host_ports,
            affinity: &pod.affinity,
            anti_affinity: &pod.anti_affinity,
            preferred_affinity: &pod.preferred_affinity,
            preferred_anti_affinity: &pod.preferred_anti_affinity,
            spread: &pod.spread,
            by_default,
            volumes: mounts.map_or(&[], |mounts| &mounts.alternatives),
        }
    }

    /// Returns the requirements with all preferences, then with one more preference relaxed each
    /// time. Source: spec/scheduling.md §2.7; preferred node affinity is relaxed term by term.
    pub(super) fn relaxation_levels(
        &self,
        policy: PreferencePolicy,
        defaults: &DefaultConstraints<'_>,
        groups: &mut PodGroups,
    ) -> Vec<(Vec<Requirements>, PodConstraints)> {
        let ignore = policy == PreferencePolicy::Ignore;
        let base = label_alternatives(self.node_selector, self.node_affinity, self.volumes);
        let near = heaviest_first(self.preferred_affinity, ignore);
        let away = heaviest_first(self.preferred_anti_affinity, ignore);
        let nodes = heaviest_first(self.preferred_nodes, ignore);
        let spread = match self.by_default {
            Some(ordinal) => defaults.get(ordinal),
            None => self.spread,
        };
        let (hard, mut soft): (Vec<_>, Vec<_>) = spread.iter().partition(|spread| spread.is_hard);
        if ignore {
            soft.clear();
        }
        let preferences = near.len() + away.len() + nodes.len() + soft.len();
        let mut levels = Vec::new();
        for relaxed in 0..=preferences {
            let relaxed = if relaxed == LEVELS_MAX { preferences } else { relaxed };
            let mut to_relax = relaxed;
            let mut rules = PodConstraints::default();
            rules.add_affinity(self.affinity, drop_first(&near, &mut to_relax), groups);
            let away = drop_first(&away, &mut to_relax);
            rules.add_anti_affinity(self.anti_affinity, away, groups);
            let preferred = drop_first(&nodes, &mut to_relax).first();
            let spread = hard.iter().chain(drop_first(&soft, &mut to_relax));
            rules.add_spread(spread.copied(), self.namespace, groups);
            levels.push((
                base.iter()
                    .map(|requirements| match preferred {
                        Some(preferred) => requirements.merged_with(preferred),
                        None => requirements.clone(),
                    })
                    .collect(),
                rules,
            ));
            if relaxed == preferences {
                break;
            }
        }
        levels
    }
}

/// Returns the terms of preferences, heaviest first, or nothing if preferences are ignored.
fn heaviest_first<T>(preferences: &[Preferred<T>], ignore: bool) -> Vec<&T> {
    let mut sorted: Vec<&Preferred<T>> = preferences.iter().filter(|_| !ignore).collect();
    sorted.sort_by_key(|preference| std::cmp::Reverse(preference.weight));
    let sorted = sorted.into_iter();
    sorted.map(|preference| &preference.term).collect()
}

/// Returns the terms without the first `to_relax`, and subtracts the number of omitted terms from
/// `to_relax`.
fn drop_first<'t, T>(terms: &'t [T], to_relax: &mut usize) -> &'t [T] {
    let relaxed = terms.len().min(*to_relax);
    *to_relax -= relaxed;
    &terms[relaxed..]
}

/// Returns alternative label requirements from the node selector, required node affinity and
/// volumes. Source: spec/scheduling.md §2.2 (pod requirements), §2.12.
pub(in crate::scheduling) fn label_alternatives(
    selector: &Labels,
    affinity: &[Requirements],
    volumes: &[Requirements],
) -> Vec<Requirements> {
    let mut all = vec![Requirements::from_labels(selector)];
    for choice in [affinity, volumes] {
        if !choice.is_empty() {
            all = all
                .iter()
                .flat_map(|requirements: &Requirements| -> Vec<Requirements> {
                    choice.iter().map(|other| requirements.merged_with(other)).collect()
                })
                .collect();
        }
    }
    all
}
