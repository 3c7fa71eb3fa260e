//! The features of random clusters. Each can be disabled to isolate a failure.

use outrigger::model::cluster::Scheduling;
use outrigger::model::labels::NODE_NAME;
use outrigger::model::pod::Pod;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::state::selectors::WorkloadSelectors;

use super::fixture::World;
use super::missed_placements::Completeness;
use super::rules::with_explicit_spread;

/// A feature of random worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// Pods with a hard spread.
    Spread,
    /// Pods with a soft spread.
    SoftSpread,
    /// A default spread of pods without constraints, and objects that select pods.
    DefaultSpread,
    /// Pods with required affinity.
    Affinity,
    /// Pods with required anti-affinity.
    AntiAffinity,
    /// Pods with preferred node affinity.
    PreferredNodes,
    /// Pods with preferred affinity or anti-affinity.
    PreferredPods,
    /// Pods that select or exclude a node by its name.
    NodeNames,
    /// Volumes with topology.
    Volumes,
    /// Nodes with a limit on attached volumes.
    AttachLimits,
    /// Pods of gangs.
    Gangs,
    /// Pods with a priority below the cutoff.
    Priorities,
    /// Pods with resource claims.
    ResourceClaims,
    /// Daemons that select nodes or use host ports.
    SelectiveDaemons,
    /// Daemons that constraints of pods match, or that have anti-affinity to pods.
    ConstrainedDaemons,
    /// Bound pods.
    Residents,
    /// Pods that wait for an in-flight node.
    Promised,
    /// Anti-affinity of bound and promised pods.
    BoundAntiAffinity,
    /// Nodes that accept no pods.
    ClosedNodes,
    /// In-flight nodes whose zone is undecided.
    UndecidedNodes,
    /// Pools whose nodes may be in one of two racks.
    Racks,
    /// Static pools.
    StaticPools,
    /// Pools with `min_values`.
    MinValues,
    /// Reserved capacity.
    Reservations,
    /// Other limits on the offerings of a claim than the defaults, and an overhead price of nodes.
    Scheduling,
}

/// All features.
pub(crate) const ALL_FEATURES: &[Feature] = &[
    Feature::Spread,
    Feature::SoftSpread,
    Feature::DefaultSpread,
    Feature::Affinity,
    Feature::AntiAffinity,
    Feature::PreferredNodes,
    Feature::PreferredPods,
    Feature::NodeNames,
    Feature::Volumes,
    Feature::AttachLimits,
    Feature::Gangs,
    Feature::Priorities,
    Feature::ResourceClaims,
    Feature::SelectiveDaemons,
    Feature::ConstrainedDaemons,
    Feature::Residents,
    Feature::Promised,
    Feature::BoundAntiAffinity,
    Feature::ClosedNodes,
    Feature::UndecidedNodes,
    Feature::Racks,
    Feature::StaticPools,
    Feature::MinValues,
    Feature::Reservations,
    Feature::Scheduling,
];

/// Features that the scheduler does not support yet.
pub(crate) const UNSUPPORTED: &[Feature] = &[];

/// Which placements plans must not miss. This can be raised to `Complete::Claims` when the
/// scheduler also fills planned nodes at a limit.
pub(crate) const REQUIRED: Completeness = Completeness::ExistingAndNewNodes;

/// Features with which the placement of a pod depends on other pods.
pub(crate) const POD_DEPENDENT: &[Feature] = &[
    Feature::Spread,
    Feature::SoftSpread,
    Feature::DefaultSpread,
    Feature::Affinity,
    Feature::AntiAffinity,
    Feature::PreferredPods,
    Feature::Gangs,
    Feature::Priorities,
    Feature::ConstrainedDaemons,
    Feature::Residents,
    Feature::Promised,
];

/// The same world without these features.
pub(crate) fn without(mut world: World, parts: &[Feature]) -> World {
    for part in parts {
        remove_feature(&mut world, *part);
    }
    world
}

#[expect(clippy::too_many_lines, reason = "a table: one arm per feature")]
fn remove_feature(world: &mut World, part: Feature) {
    let pods = |world: &mut World, of: fn(&mut Pod)| world.pods.iter_mut().for_each(of);
    if matches!(part, Feature::Spread | Feature::SoftSpread) {
        // A pod without constraints would get the default ones.
        *world = with_explicit_spread(std::mem::take(world));
    }
    match part {
        Feature::Spread => pods(world, |pod| pod.spread.retain(|constraint| !constraint.is_hard)),
        Feature::SoftSpread => {
            pods(world, |pod| pod.spread.retain(|constraint| constraint.is_hard))
        }
        Feature::DefaultSpread => {
            world.cluster.scheduling.default_spread.clear();
            world.selecting.clear();
            world.selectors = WorkloadSelectors::default();
            pods(world, |pod| pod.owner = None);
        }
        Feature::Affinity => pods(world, |pod| pod.affinity.clear()),
        Feature::AntiAffinity => pods(world, |pod| pod.anti_affinity.clear()),
        Feature::PreferredNodes => pods(world, |pod| pod.preferred_nodes.clear()),
        Feature::PreferredPods => pods(world, |pod| {
            pod.preferred_affinity.clear();
            pod.preferred_anti_affinity.clear();
        }),
        Feature::NodeNames => pods(world, |pod| {
            pod.node_affinity.retain(|term| term.get(NODE_NAME).is_none());
        }),
        Feature::Volumes => world.mounts.clear(),
        Feature::AttachLimits => world.rooms.iter_mut().for_each(|room| {
            room.free.extended.clear();
        }),
        Feature::Gangs => pods(world, |pod| pod.gang = None),
        Feature::Priorities => world.cluster.scheduling.priority_cutoff = None,
        Feature::ResourceClaims => pods(world, |pod| pod.has_resource_claims = false),
        Feature::SelectiveDaemons => world.daemons.iter_mut().for_each(|set| {
            set.template.node_selector.remove("team");
            set.template.node_affinity.clear();
            set.template.host_ports.clear();
        }),
        Feature::ConstrainedDaemons => world.daemons.iter_mut().for_each(|set| {
            set.template.labels.clear();
            set.template.anti_affinity.clear();
        }),
        Feature::Residents => world.residents.clear(),
        Feature::Promised => world.promised.clear(),
        Feature::BoundAntiAffinity => {
            let promised = world.promised.values_mut().flatten();
            for pod in world.residents.iter_mut().chain(promised) {
                pod.anti_affinity.clear();
            }
        }
        Feature::ClosedNodes => world.rooms.iter_mut().for_each(|room| room.open = true),
        Feature::UndecidedNodes => world.rooms.iter_mut().for_each(|room| {
            room.labels =
                map_requirements(&room.labels, |requirement| match requirement.values() {
                    Some(values) => Requirement::is_in(values.iter().take(1).cloned()),
                    None => requirement.clone(),
                })
                .into();
        }),
        Feature::Racks => {
            for pool in &mut world.cluster.pools {
                let kept = pool.requirements.iter().filter(|(key, _)| *key != "rack");
                pool.requirements = kept.map(|(key, retained)| (key, retained.clone())).collect();
            }
        }
        Feature::StaticPools => {
            let pools = world.cluster.pools.iter_mut();
            pools.for_each(|pool| pool.replicas = None);
        }
        Feature::MinValues => {
            for pool in &mut world.cluster.pools {
                pool.requirements = map_requirements(&pool.requirements, |requirement| {
                    let mut changed = requirement.clone();
                    changed.min_values = None;
                    changed
                });
            }
        }
        Feature::Reservations => world.catalog = world.catalog.with_reservations([]),
        Feature::Scheduling => {
            world.cluster.scheduling = Scheduling {
                priority_cutoff: world.cluster.scheduling.priority_cutoff,
                min_values: world.cluster.scheduling.min_values,
                preferences: world.cluster.scheduling.preferences,
                default_spread: world.cluster.scheduling.default_spread.clone(),
                ..Scheduling::default()
            };
        }
    }
}

fn map_requirements(
    all: &Requirements,
    with: impl Fn(&Requirement) -> Requirement,
) -> Requirements {
    all.iter().map(|(key, requirement)| (key, with(requirement))).collect()
}
