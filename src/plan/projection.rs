//! Projects a snapshot to the time when planned claims exist: each claim is an in-flight node and
//! counts towards limits.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::model::id::{ClaimId, PodKey};
use crate::model::quantity::Resources;
use crate::scheduling::NewNodeClaim;
use crate::state::node_capacity::{daemons_of, in_flight_node_of};
use crate::state::snapshot::{NodeRef, Snapshot};

/// Returns the placeholder node for a planned claim until it has an ID.
pub(super) fn placeholder_node(index: usize) -> NodeRef {
    NodeRef::Claim(ClaimId::from(format!("planned-{index}")))
}

/// Returns the snapshot with these claims as in-flight nodes.
pub(super) fn with_claims<'s, 'a>(
    snapshot: &'s Snapshot<'a>,
    claims: &[NewNodeClaim],
) -> Cow<'s, Snapshot<'a>> {
    if claims.is_empty() {
        return Cow::Borrowed(snapshot);
    }
    let mut ahead = snapshot.clone();
    for (index, claim) in claims.iter().enumerate() {
        let Some(pool) = snapshot.cluster.pool(claim.pool.as_str()) else {
            continue;
        };
        let catalog = snapshot.catalog_of(&claim.pool);
        let offerings: Vec<_> = claim.offerings.iter().map(|(key, _)| key.clone()).collect();
        let mut largest = Resources::default();
        for offering in &offerings {
            if let Some(instance_type) = catalog.get(offering.instance_type.as_str()) {
                largest.raise_to(&instance_type.capacity);
            }
        }
        let used = ahead.usage.entry(claim.pool.clone()).or_default();
        used.nodes += 1;
        used.capacity.add(&largest);
        let reserved = claim.reservation();
        if let Some(reservation) = reserved.and_then(|id| ahead.reservations.get_mut(id)) {
            reservation.left = reservation.left.saturating_sub(1);
        }
        let room =
            in_flight_node_of(placeholder_node(index), pool, &offerings, catalog, &claim.labels);
        if let Some(mut room) = room {
            room.free.subtract(&claim.requests);
            room.daemons = daemons_of(&room, &snapshot.daemon_sets);
            ahead.rooms.push(room);
        }
    }
    Cow::Owned(ahead)
}

/// Adds pods that were placed on placeholder nodes to their claims, and returns the other
/// placements.
pub(super) fn assign_to_claims(
    placed: Vec<(NodeRef, Vec<PodKey>)>,
    claims: &mut [NewNodeClaim],
    snapshot: &Snapshot<'_>,
) -> Vec<(NodeRef, Vec<PodKey>)> {
    if claims.is_empty() {
        return placed;
    }
    let places = (0..claims.len()).map(|index| (placeholder_node(index), index));
    let places: BTreeMap<NodeRef, usize> = places.collect();
    let pending = snapshot.pending.iter();
    let requests: BTreeMap<&PodKey, &Resources> =
        pending.map(|pod| (&pod.key, &pod.requests)).collect();
    let mut others = Vec::new();
    for (host, pods) in placed {
        let Some(claim) = places.get(&host).and_then(|index| claims.get_mut(*index)) else {
            others.push((host, pods));
            continue;
        };
        for pod in &pods {
            if let Some(request) = requests.get(pod) {
                claim.requests.add(request);
            }
        }
        claim.pods.extend(pods);
        claim.pods.sort_unstable();
    }
    others
}
