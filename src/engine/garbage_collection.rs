//! Deletes managed Nodes that have no claim and whose kubelet is silent.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::claims;
use crate::engine::claims::finalizer_removal_patch;
use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::controllers::{Orphan, Unclaimed};
use crate::engine::early_binding;
use crate::engine::early_binding::EarlyBinding;
use crate::engine::in_flight::CommandPurpose;
use crate::engine::report::Report;
use crate::engine::sweep_result::{SweepOutcome, SweptNode, found_nodes, pool_of};
use crate::engine::sweeps;
use crate::model::id::{ClaimId, NodeName};
use crate::model::labels::CLAIM;
use crate::model::sweep::SweepKind;
use crate::plan::Plan;
use crate::state::State;
use crate::state::sweeps::DueSweeps;

/// A managed Node that is not ready is deleted once it has had no known instance for this long.
const ORPHAN_AGE: SignedDuration = SignedDuration::from_secs(60);

/// Returns the managed Nodes without an instance, with their UID and whether this is certain: the
/// instance has ended, or the Node was never used.
fn nodes_without_instance(cx: &Context) -> BTreeMap<NodeName, (String, bool)> {
    let mut orphans: BTreeMap<NodeName, (String, bool)> = BTreeMap::new();
    for node in cx.state.objects.nodes.values() {
        let ledger = &cx.state.ledger;
        let instance = node.instance_id();
        let is_ours =
            cx.state.is_of_this_installation(node) && node.annotations.contains_key(CLAIM);
        let is_lost = !cx.state.is_claimed(node)
            && !instance.is_some_and(|instance| ledger.is_listed_live(instance));
        let has_ended = instance.is_some_and(|instance| ledger.has_ended(instance));
        let for_sure = is_lost && has_ended || early_binding::has_unexpected_name(cx, node);
        if for_sure || is_lost && is_ours && !node.ready {
            orphans.insert(node.name.clone(), (node.uid.clone(), for_sure));
        }
    }
    orphans
}

/// Deletes managed Nodes without a claim whose kubelet is silent. With a schedule for sweeps of
/// orphans, a Node whose instance may still exist is deleted after a sweep has found it.
pub(super) fn collect_orphans(
    cx: &mut Context,
    early_binding: &mut EarlyBinding,
    unclaimed: &mut Unclaimed,
    due_sweeps: &DueSweeps,
    now: Timestamp,
) {
    let orphans = nodes_without_instance(cx);
    unclaimed.orphans.retain(|name, _| orphans.contains_key(name));
    let mut found = Vec::new();
    for (node, (uid, for_sure)) in orphans {
        let new = Orphan { since: now, is_told: false };
        let since = unclaimed.orphans.entry(node.clone()).or_insert(new).since;
        let age = if for_sure { SignedDuration::ZERO } else { ORPHAN_AGE };
        let due = claims::condition_deadline(cx, since, age);
        if cx.outbox.waits_until(due, "a node has no instance", now) {
            found.push(swept_orphan(cx, &node, SweepOutcome::Observed(None)));
            continue;
        }
        if !for_sure && !is_permitted(&cx.state, &node) {
            continue;
        }
        found.push(swept_orphan(cx, &node, deletion_outcome(cx)));
        let orphan = unclaimed.orphans.get_mut(&node);
        if orphan.is_some_and(|orphan| !std::mem::replace(&mut orphan.is_told, true)) {
            cx.outbox.push_report(Report::Orphan { node: node.clone() });
        }
        if cx.is_managing()
            && !is_removing(cx, &node)
            && !(for_sure && early_binding.unbind_pods(cx, &node, now))
        {
            let purpose = CommandPurpose::Orphan(node.clone());
            let finalized = cx.state.objects.nodes.get(&node).and_then(finalizer_removal_patch);
            let command =
                finalized.map_or_else(|| Command::DeleteNode { node, uid }, Command::PatchNode);
            cx.outbox.queue_command(command, purpose, now);
        }
    }
    record_orphans(cx, due_sweeps, found, now);
}

/// Returns whether no sweep must find a Node before it is deleted.
fn is_permitted(state: &State, node: &NodeName) -> bool {
    let (kind, claim) = (SweepKind::Orphans, claim_id(state, node));
    !state.cluster.sweeps.contains_key(&kind)
        || state.sweeps.permits(kind, claim.as_ref(), &pool_of(state, node))
}

fn claim_id(state: &State, node: &NodeName) -> Option<ClaimId> {
    let node = state.objects.nodes.get(node)?;
    node.annotations.get(CLAIM).map(|id| ClaimId::from(id.as_str()))
}

fn deletion_outcome(cx: &Context) -> SweepOutcome {
    match cx.is_managing() {
        true => SweepOutcome::Disrupted,
        false => SweepOutcome::Observed(None),
    }
}

fn swept_orphan(cx: &Context, node: &NodeName, outcome: SweepOutcome) -> SweptNode {
    SweptNode { node: node.clone(), pool: pool_of(&cx.state, node), outcome }
}

/// Records the Nodes without an instance, and the nodes whose instance has vanished.
fn record_orphans(
    cx: &mut Context,
    due_sweeps: &DueSweeps,
    mut found: Vec<SweptNode>,
    now: Timestamp,
) {
    let kind = SweepKind::Orphans;
    if cx.state.sweeps.get(kind).is_none() && !due_sweeps.has_started(kind) {
        return;
    }
    let disrupted = found.iter().filter(|node| node.outcome != SweepOutcome::Observed(None));
    let due = disrupted.filter_map(|found| claim_id(&cx.state, &found.node)).collect();
    let waiting = found.iter().filter(|node| node.outcome == SweepOutcome::Observed(None));
    let waiting: BTreeSet<ClaimId> =
        waiting.filter_map(|found| claim_id(&cx.state, &found.node)).collect();
    found.extend(found_nodes(&cx.state, kind, &Plan::default(), cx.is_managing()));
    let is_evaluated = |id: &ClaimId| !waiting.contains(id);
    sweeps::record_found_nodes(cx, due_sweeps, kind, &found, due, is_evaluated, now);
}

/// Returns the nodes that a sweep of orphans would find now.
pub(super) fn preview_orphans(cx: &Context, unclaimed: &Unclaimed) -> Vec<SweptNode> {
    let orphans = nodes_without_instance(cx).into_keys();
    let known = orphans.filter(|node| unclaimed.orphans.contains_key(node));
    let mut found: Vec<SweptNode> =
        known.map(|node| swept_orphan(cx, &node, SweepOutcome::Observed(None))).collect();
    found.extend(found_nodes(&cx.state, SweepKind::Orphans, &Plan::default(), false));
    found
}

fn is_removing(cx: &Context, node: &NodeName) -> bool {
    let purpose = CommandPurpose::Orphan(node.clone());
    cx.outbox.in_flight.values().any(|command| command.kind == purpose)
}
