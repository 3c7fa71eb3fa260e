//! The features of random clusters. Each can be disabled to isolate a failure.

use outrigger::model::cluster::Scheduling;
use outrigger::model::labels::NODE_NAME;
use outrigger::model::pod::Pod;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::state::selectors::WorkloadSelectors;

use super::fixture::World;
use super::missed_placements::Complete;
use super::rules::written_out;

/// One kind of thing a world may have in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Pods with a spread that must hold.
    Spread,
    /// Pods with a spread they would like.
    SoftSpread,
    /// A spread of pods that do not say how they are, and what selects pods.
    DefaultSpread,
    /// Pods that must be near others.
    Affinity,
    /// Pods that must be away from others.
    AntiAffinity,
    /// Labels of nodes that pods would like.
    PreferredNodes,
    /// Pods that others would like to be near to or away from.
    PreferredPods,
    /// Pods that ask for a node by its name, or for any but one.
    NodeNames,
    /// Volumes that can be used in some places only.
    Volumes,
    /// Nodes to which so many volumes can be attached.
    AttachLimits,
    /// Pods that are of use only together.
    Gangs,
    /// Pods that are not worth a node.
    Priorities,
    /// Pods with resource claims.
    ResourceClaims,
    /// Daemons that run on nodes of some labels only, and bind host ports.
    PickyDaemons,
    /// Daemons that rules of pods speak of, or that must be away from pods.
    SocialDaemons,
    /// Pods that are bound.
    Residents,
    /// Pods that wait for a host.
    Promised,
    /// What residents and promised pods must be away from.
    OthersAntiAffinity,
    /// Rooms that take no pods.
    ClosedRooms,
    /// Rooms of claims whose zone is one of several.
    UnsettledRooms,
    /// Pools whose nodes may have one of two racks, and places by rack.
    Racks,
    /// Pools with a number of nodes of their own.
    StaticPools,
    /// Pools that want to be flexible.
    MinValues,
    /// Capacity that is reserved.
    Reservations,
    /// Other bounds of a claim's offerings than the default ones, and a price of nodes.
    Scheduling,
}

/// All of them.
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

/// What the solver does not weigh yet. To be emptied, one by one, as it learns to.
pub(crate) const OFF: &[Part] = &[];

/// How much plans have to make of what they have. To be raised to `Complete::Claims` when the
/// solver fills what it makes even where a limit ends it.
pub(crate) const COMPLETE: Complete = Complete::RoomsAndNodes;

/// What makes the place of one pod depend on those of others.
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

/// The same world without these parts.
pub(crate) fn without(mut world: World, parts: &[Part]) -> World {
    for part in parts {
        strip(&mut world, *part);
    }
    world
}

#[expect(clippy::too_many_lines, reason = "a table: one arm a part")]
fn strip(world: &mut World, part: Part) {
    let pods = |world: &mut World, of: fn(&mut Pod)| world.pods.iter_mut().for_each(of);
    if matches!(part, Part::Spread | Part::SoftSpread) {
        // A pod that is left without constraints must not come to have others.
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
