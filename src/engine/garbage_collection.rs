//! Deletes managed Nodes that have no claim and whose kubelet is silent.

use std::collections::BTreeMap;

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
use crate::model::id::NodeName;
use crate::model::labels::CLAIM;

/// A managed Node that is not ready is deleted once it has had no known instance for this long.
const ORPHAN_AGE: SignedDuration = SignedDuration::from_secs(60);

/// Deletes managed Nodes without a claim whose kubelet is silent.
pub(super) fn collect_orphans(
    cx: &mut Context,
    early_binding: &mut EarlyBinding,
    unclaimed: &mut Unclaimed,
    now: Timestamp,
) {
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
    unclaimed.orphans.retain(|name, _| orphans.contains_key(name));
    for (node, (uid, for_sure)) in orphans {
        let new = Orphan { since: now, is_told: false };
        let since = unclaimed.orphans.entry(node.clone()).or_insert(new).since;
        let age = if for_sure { SignedDuration::ZERO } else { ORPHAN_AGE };
        let due = claims::condition_deadline(cx, since, age);
        if cx.outbox.waits_until(due, "a node has no instance", now) {
            continue;
        }
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
}

fn is_removing(cx: &Context, node: &NodeName) -> bool {
    let purpose = CommandPurpose::Orphan(node.clone());
    cx.outbox.in_flight.values().any(|command| command.kind == purpose)
}
