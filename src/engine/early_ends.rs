//! Handles instances that end before their nodes have registered, and whose end Outrigger has not
//! requested.
//!
//! CreateFleet succeeds, and the instance then ends, for example because EC2 may not use the key of
//! its volumes. Without a delay, an instance would be launched and end every few seconds. Source:
//! EC2 API reference, StateReason; Karpenter, issues 933 and 1407.

use jiff::Timestamp;

use crate::engine::context::Context;
use crate::engine::fleet_sync;
use crate::engine::registration_backoff;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::ClaimId;
use crate::model::node::Node;
use crate::model::pool::Reason;
use crate::provider::{OfferingRefusal, RefusalKind};

/// Handles the end of the instance of a claim. If the provider is at fault, the offering is
/// unavailable. Otherwise, further instances of the pool would end as well: their launches are
/// delayed as if the node had not registered in time.
pub(super) fn on_instance_ended(cx: &mut Context, id: &ClaimId, now: Timestamp) {
    let Some(claim) = cx.claim(id) else {
        return;
    };
    let Some(instance) = &claim.instance else {
        return;
    };
    let reason = instance.facts.as_ref().and_then(|facts| facts.state_reason.as_ref());
    let node = cx.node_of(claim);
    let is_early = match claim.leaving {
        None => claim.phase == ClaimPhase::Launched && !node.is_some_and(Node::is_registered),
        // The notice that the instance ends may arrive first. Then Outrigger terminates it, too.
        Some(Reason::Interrupted) => {
            let had_node = claim.node.is_some() && !node.is_some_and(Node::is_awaited);
            !had_node && reason.is_some_and(|reason| !reason.is_of_user())
        }
        Some(_) => false,
    };
    // An older instance may have had a Node, and a previous leader may have terminated it.
    let is_new = cx.state.started.is_some_and(|at| claim.record.created >= at);
    let is_known = cx.progress.get(id).is_some_and(|progress| progress.unregistered);
    if !is_early || !is_new || is_known || !cx.is_managing() {
        return;
    }
    let is_of_provider = reason.is_some_and(|reason| reason.is_of_provider());
    let why = reason.map_or_else(|| "no reason known".to_owned(), ToString::to_string);
    let (class, offering) = (claim.record.node_class.clone(), instance.offering.clone());
    cx.outbox.push_report(Report::EndedEarly {
        claim: id.clone(),
        pool: claim.record.pool.clone(),
        instance: instance.id.clone(),
        offering: offering.clone(),
        why,
        pods: claim.pods.iter().cloned().collect(),
    });
    if !is_of_provider {
        registration_backoff::on_not_registered(cx, id, now);
        return;
    }
    let refusal = OfferingRefusal { offering, kind: RefusalKind::InsufficientCapacity };
    fleet_sync::on_offerings_refused(cx, class.as_ref(), &[refusal], now);
    registration_backoff::on_ended_by_provider(cx, id, now);
}
