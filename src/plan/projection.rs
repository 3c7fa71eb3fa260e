//! A snapshot as it will be once some claims are made: each is room, and is in use.
//! It must not know why they are made.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::model::id::{ClaimId, PodKey};
use crate::model::quantity::Resources;
use crate::scheduling::NewNodeClaim;
use crate::state::node_capacity::{daemons_of, room_to_come};
use crate::state::snapshot::{NodeRef, Snapshot};

/// The host that stands for the claim at this place of a plan until it has an id.
pub(super) fn host(at: usize) -> NodeRef {
    NodeRef::Claim(ClaimId::from(format!("planned-{at}")))
}

/// The snapshot with these claims made.
pub(super) fn ahead<'s, 'a>(
    snapshot: &'s Snapshot<'a>,
    claims: &[NewNodeClaim],
) -> Cow<'s, Snapshot<'a>> {
    if claims.is_empty() {
        return Cow::Borrowed(snapshot);
    }
    let mut ahead = snapshot.clone();
    for (at, claim) in claims.iter().enumerate() {
        let Some(pool) = snapshot.cluster.pool(claim.pool.as_str()) else {
            continue;
        };
        let catalog = snapshot.catalog_of(&claim.pool);
        let offerings: Vec<_> = claim.offerings.iter().map(|(key, _)| key.clone()).collect();
        let used = ahead.usage.entry(claim.pool.clone()).or_default();
        used.nodes += 1;
        used.capacity.add(&largest(claim, snapshot));
        let reserved = claim.reservation();
        if let Some(own) = reserved.and_then(|id| ahead.reservations.get_mut(id)) {
            own.left = own.left.saturating_sub(1);
        }
        let room = room_to_come(host(at), pool, (&offerings, catalog), &claim.labels);
        if let Some(mut room) = room {
            room.free.subtract(&claim.requests);
            room.daemons = daemons_of(&room, &snapshot.daemon_sets);
            ahead.rooms.push(room);
        }
    }
    Cow::Owned(ahead)
}

/// The most of each resource that a claim may turn out to have.
pub(super) fn largest(claim: &NewNodeClaim, snapshot: &Snapshot<'_>) -> Resources {
    let catalog = snapshot.catalog_of(&claim.pool);
    let mut largest = Resources::default();
    for (offering, _) in &claim.offerings {
        if let Some(it) = catalog.get(offering.instance_type.as_str()) {
            largest.raise_to(&it.capacity);
        }
    }
    largest
}

/// Gives the pods that were placed on such claims to them; the others are left.
pub(super) fn give(
    placed: Vec<(NodeRef, Vec<PodKey>)>,
    claims: &mut [NewNodeClaim],
    snapshot: &Snapshot<'_>,
) -> Vec<(NodeRef, Vec<PodKey>)> {
    if claims.is_empty() {
        return placed;
    }
    let places: BTreeMap<NodeRef, usize> = (0..claims.len()).map(|at| (host(at), at)).collect();
    let requests: BTreeMap<&PodKey, &Resources> = snapshot
        .pending
        .iter()
        .map(|pod| (&pod.key, &pod.requests))
        .collect();
    let mut rest = Vec::new();
    for (host, pods) in placed {
        let Some(claim) = places.get(&host).and_then(|at| claims.get_mut(*at)) else {
            rest.push((host, pods));
            continue;
        };
        for pod in &pods {
            if let Some(own) = requests.get(pod) {
                claim.requests.add(own);
            }
        }
        claim.pods.extend(pods);
        claim.pods.sort_unstable();
    }
    rest
}
