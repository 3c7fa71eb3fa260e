//! Deletes managed Nodes that have no claim and whose kubelet is silent.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::in_flight::CommandPurpose;
use crate::engine::registration::finalizer_removal_patch;
use crate::engine::report::Report;
use crate::model::id::NodeName;
use crate::model::labels::CLAIM;

/// A Node without an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orphan {
    /// When it was first seen without an instance.
    since: Timestamp,
    /// True if its deletion was reported.
    is_told: bool,
}

/// A managed Node without a known instance is deleted after this time, if it is not ready.
const ORPHAN_AGE: SignedDuration = SignedDuration::from_secs(60);

impl Engine {
    /// Deletes managed Nodes without a claim whose kubelet is silent.
    pub(super) fn collect_orphans(&mut self, now: Timestamp) {
        let mut orphans: BTreeMap<NodeName, (String, bool)> = BTreeMap::new();
        for node in self.state.objects.nodes.values() {
            let ledger = &self.state.ledger;
            let instance = node.instance_id();
            let is_ours =
                self.state.is_of_this_installation(node) && node.annotations.contains_key(CLAIM);
            let is_lost = !self.state.is_claimed(node)
                && !instance.is_some_and(|instance| ledger.is_listed_live(instance));
            let has_ended = instance.is_some_and(|instance| ledger.has_ended(instance));
            let for_sure = is_lost && has_ended || self.is_misnamed(node);
            if for_sure || is_lost && is_ours && !node.ready {
                orphans.insert(node.name.clone(), (node.uid.clone(), for_sure));
            }
        }
        self.orphans.retain(|name, _| orphans.contains_key(name));
        for (node, (uid, for_sure)) in orphans {
            let new = Orphan { since: now, is_told: false };
            let since = self.orphans.entry(node.clone()).or_insert(new).since;
            let age = if for_sure { SignedDuration::ZERO } else { ORPHAN_AGE };
            let due = self.condition_deadline(since, age);
            if self.waits_until(due, "a node has no instance", now) {
                continue;
            }
            let orphan = self.orphans.get_mut(&node);
            if orphan.is_some_and(|orphan| !std::mem::replace(&mut orphan.is_told, true)) {
                self.push_report(Report::Orphan { node: node.clone() });
            }
            if self.is_managing()
                && !self.is_removing(&node)
                && !(for_sure && self.unbind_pods(&node, now))
            {
                let purpose = CommandPurpose::Orphan(node.clone());
                let finalized =
                    self.state.objects.nodes.get(&node).and_then(finalizer_removal_patch);
                let command =
                    finalized.map_or_else(|| Command::DeleteNode { node, uid }, Command::PatchNode);
                self.queue_command(command, purpose, now);
            }
        }
    }

    fn is_removing(&self, node: &NodeName) -> bool {
        let purpose = CommandPurpose::Orphan(node.clone());
        self.flights.values().any(|command| command.kind == purpose)
    }
}
