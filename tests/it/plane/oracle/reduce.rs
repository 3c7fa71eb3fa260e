//! Reduces a failing cluster while it still fails.

use super::compare::Court;
use super::fixture::World;

/// Returns all variants of a random cluster with one part less.
fn smaller(world: &World) -> Vec<World> {
    let mut all = Vec::new();
    let mut without = |change: &dyn Fn(&mut World)| {
        let mut less = world.clone();
        change(&mut less);
        all.push(less);
    };
    for at in 0..world.deployments.len() {
        without(&|less| drop(less.deployments.remove(at)));
    }
    for at in 0..world.standing.len() {
        without(&|less| drop(less.standing.remove(at)));
    }
    for at in 0..world.daemons.len() {
        without(&|less| drop(less.daemons.remove(at)));
    }
    for at in 0..world.services.len() {
        without(&|less| drop(less.services.remove(at)));
    }
    if world.pools.len() > 1 {
        for at in 0..world.pools.len() {
            without(&|less| drop(less.pools.remove(at)));
        }
    }
    for (of, deployment) in world.deployments.iter().enumerate() {
        for at in (1..deployment.pods.len()).rev() {
            without(&|less| drop(less.deployments[of].pods.remove(at)));
        }
    }
    for (of, standing) in world.standing.iter().enumerate() {
        for at in 0..standing.residents.len() {
            without(&|less| drop(less.standing[of].residents.remove(at)));
        }
    }
    all
}

/// Returns the smallest failing cluster that was found, and its failure.
pub(super) async fn reduce(court: &Court, mut world: World, mut why: String) -> (World, String) {
    'again: loop {
        for less in smaller(&world) {
            if let Err(still) = court.judge(&less).await {
                (world, why) = (less, still);
                continue 'again;
            }
        }
        return (world, why);
    }
}
