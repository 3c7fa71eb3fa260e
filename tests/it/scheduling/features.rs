//! The features of random clusters. Each can be disabled to isolate a failure.

use outrigger::model::cluster::Scheduling;
use outrigger::model::labels::NODE_NAME;
use outrigger::model::pod::Pod;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::state::selectors::WorkloadSelectors;

use super::fixture::World;
use super::missed_placements::Complete;
use super::rules::written_out;

/// A feature of random worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
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
    PickyDaemons,
    /// Daemons that constraints of pods match, or that have anti-affinity to pods.
    SocialDaemons,
    /// Bound pods.
    Residents,
    /// Pods that wait for an in-flight node.
    Promised,
    /// Anti-affinity of bound and promised pods.
    OthersAntiAffinity,
    /// Nodes that accept no pods.
    ClosedRooms,
    /// In-flight nodes whose zone is undecided.
    UnsettledRooms,
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
pub(crate) const ALL: &[Part] = &[
    Part::Spread,
    Part::SoftSpread,
    Part::DefaultSpread,
    Part::Affinity,
    Part::AntiAffinity,
    Part::PreferredNodes,
    Part::PreferredPods,
    Part::NodeNames,
    Part::Volumes,
    Part::AttachLimits,
    Part::Gangs,
    Part::Priorities,
    Part::ResourceClaims,
    Part::PickyDaemons,
    Part::SocialDaemons,
    Part::Residents,
    Part::Promised,
    Part::OthersAntiAffinity,
    Part::ClosedRooms,
    Part::UnsettledRooms,
    Part::Racks,
    Part::StaticPools,
    Part::MinValues,
    Part::Reservations,
    Part::Scheduling,
];

/// Features that the scheduler does not support yet.
pub(crate) const OFF: &[Part] = &[];

/// Which placements plans must not miss. This can be raised to `Complete::Claims` when the
/// scheduler also fills planned nodes at a limit.
pub(crate) const COMPLETE: Complete = Complete::RoomsAndNodes;

/// Features with which the placement of a pod depends on other pods.
pub(crate) const TOGETHER: &[Part] = &[
    Part::Spread,
    Part::SoftSpread,
    Part::DefaultSpread,
    Part::Affinity,
    Part::AntiAffinity,
    Part::PreferredPods,
    Part::Gangs,
    Part::Priorities,
    Part::SocialDaemons,
    Part::Residents,
    Part::Promised,
];

/// The same world without these features.
pub(crate) fn without(mut world: World, parts: &[Part]) -> World {
    for part in parts {
        strip(&mut world, *part);
    }
    world
}

#[expect(clippy::too_many_lines, reason = "a table: one arm per feature")]
fn strip(world: &mut World, part: Part) {
    let pods = |world: &mut World, of: fn(&mut Pod)| world.pods.iter_mut().for_each(of);
    if matches!(part, Part::Spread | Part::SoftSpread) {
        // A pod without constraints would get the default ones.
        *world = written_out(std::mem::take(world));
    }
    match part {
        Part::Spread => pods(world, |pod| pod.spread.retain(|own| !own.is_hard)),
        Part::SoftSpread => pods(world, |pod| pod.spread.retain(|own| own.is_hard)),
        Part::DefaultSpread => {
            world.cluster.scheduling.default_spread.clear();
            world.selecting.clear();
            world.selectors = WorkloadSelectors::default();
            pods(world, |pod| pod.owner = None);
        }
        Part::Affinity => pods(world, |pod| pod.affinity.clear()),
        Part::AntiAffinity => pods(world, |pod| pod.anti_affinity.clear()),
        Part::PreferredNodes => pods(world, |pod| pod.preferred_nodes.clear()),
        Part::PreferredPods => pods(world, |pod| {
            pod.preferred_affinity.clear();
            pod.preferred_anti_affinity.clear();
        }),
        Part::NodeNames => pods(world, |pod| {
            pod.node_affinity.retain(|term| term.get(NODE_NAME).is_none());
        }),
        Part::Volumes => world.mounts.clear(),
        Part::AttachLimits => world.rooms.iter_mut().for_each(|room| {
            room.free.extended.clear();
        }),
        Part::Gangs => pods(world, |pod| pod.gang = None),
        Part::Priorities => world.cluster.scheduling.priority_cutoff = None,
        Part::ResourceClaims => pods(world, |pod| pod.has_resource_claims = false),
        Part::PickyDaemons => world.daemons.iter_mut().for_each(|set| {
            set.template.node_selector.remove("team");
            set.template.node_affinity.clear();
            set.template.host_ports.clear();
        }),
        Part::SocialDaemons => world.daemons.iter_mut().for_each(|set| {
            set.template.labels.clear();
            set.template.anti_affinity.clear();
        }),
        Part::Residents => world.residents.clear(),
        Part::Promised => world.promised.clear(),
        Part::OthersAntiAffinity => {
            let promised = world.promised.values_mut().flatten();
            for pod in world.residents.iter_mut().chain(promised) {
                pod.anti_affinity.clear();
            }
        }
        Part::ClosedRooms => world.rooms.iter_mut().for_each(|room| room.open = true),
        Part::UnsettledRooms => world.rooms.iter_mut().for_each(|room| {
            room.labels = each(&room.labels, |own| match own.values() {
                Some(values) => Requirement::is_in(values.iter().take(1).cloned()),
                None => own.clone(),
            })
            .into();
        }),
        Part::Racks => {
            for pool in &mut world.cluster.pools {
                let kept = pool.requirements.iter().filter(|(key, _)| *key != "rack");
                pool.requirements = kept.map(|(key, own)| (key, own.clone())).collect();
            }
        }
        Part::StaticPools => {
            let pools = world.cluster.pools.iter_mut();
            pools.for_each(|pool| pool.replicas = None);
        }
        Part::MinValues => {
            for pool in &mut world.cluster.pools {
                pool.requirements = each(&pool.requirements, |own| {
                    let mut own = own.clone();
                    own.min_values = None;
                    own
                });
            }
        }
        Part::Reservations => world.catalog = world.catalog.with_reservations([]),
        Part::Scheduling => {
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

fn each(all: &Requirements, with: impl Fn(&Requirement) -> Requirement) -> Requirements {
    all.iter().map(|(key, own)| (key, with(own))).collect()
}
