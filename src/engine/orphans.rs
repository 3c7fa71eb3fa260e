//! Nodes of ours that no claim knows, and whose kubelet is silent: they go.
//! It must not know what became of their instances.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::lifecycle::released;
use crate::engine::report::Report;
use crate::engine::work::FlightKind;
use crate::model::id::NodeName;
use crate::model::labels::CLAIM;
use crate::model::node::Node;

/// A Node without an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orphan {
    /// Since when it is seen to have none.
    since: Timestamp,
    /// Whether it was said that it goes.
    is_told: bool,
}

/// A Node of ours whose instance is unknown is removed after this long, once it is not ready.
const ORPHAN_AGE: SignedDuration = SignedDuration::from_secs(60);

/// One of so many Nodes of ours may be ready without an instance, for a moment.
const UNLISTED_MAX: usize = 5;

impl Engine {
    /// Removes Nodes of ours that no claim knows and whose kubelet is silent.
    pub(super) fn collect_orphans(&mut self, now: Timestamp) {
        let ours =
            |node: &Node| self.state.is_made_here(node) && node.annotations.contains_key(CLAIM);
        let ended = |node: &Node| {
            node.instance_id()
                .is_some_and(|own| self.state.ledger.has_ended(own))
        };
        let runs = |node: &Node| {
            node.instance_id()
                .is_some_and(|own| self.state.ledger.is_listed_live(own))
        };
        let orphans: BTreeMap<NodeName, (String, bool)> = self
            .state
            .objects
            .nodes
            .values()
            .filter(|node| {
                let lost = !self.state.is_claimed(node) && !runs(node);
                (lost && (ended(node) || (ours(node) && !node.ready))) || self.is_misnamed(node)
            })
            .map(|node| {
                let for_sure = ended(node) || self.is_misnamed(node);
                (node.name.clone(), (node.uid.clone(), for_sure))
            })
            .collect();
        self.orphans.retain(|name, _| orphans.contains_key(name));
        let elsewhere = self.are_listed_elsewhere(ours, runs);
        for (node, (uid, for_sure)) in orphans {
            let new = Orphan {
                since: now,
                is_told: false,
            };
            let since = self.orphans.entry(node.clone()).or_insert(new).since;
            let age = if for_sure {
                SignedDuration::ZERO
            } else {
                ORPHAN_AGE
            };
            if elsewhere && !for_sure {
                continue;
            }
            let due = self.deadline(since, age);
            if due > now {
                self.wake_at(due, "a node has no instance");
                continue;
            }
            let orphan = self.orphans.get_mut(&node);
            if orphan.is_some_and(|own| !std::mem::replace(&mut own.is_told, true)) {
                self.report(Report::Orphan { node: node.clone() });
            }
            if self.manages()
                && !self.is_removing(&node)
                && !(for_sure && self.unbind_pods(&node, now))
            {
                let flight = FlightKind::Orphan(node.clone());
                let finalized = self.state.objects.nodes.get(&node).and_then(released);
                let command =
                    finalized.map_or_else(|| Command::DeleteNode { node, uid }, Command::PatchNode);
                self.issue(command, flight, now);
            }
        }
    }

    /// Whether many Nodes of ours are ready whose instances no listing shows: it is of another
    /// account or region than they are in, so that it says nothing of those that are silent.
    fn are_listed_elsewhere(
        &self,
        ours: impl Fn(&Node) -> bool,
        runs: impl Fn(&Node) -> bool,
    ) -> bool {
        let all = self.state.objects.nodes.values();
        let (mut total, mut unlisted) = (0, 0);
        for node in all.filter(|node| ours(node)) {
            total += 1;
            let lost = !self.state.is_claimed(node) && !runs(node);
            unlisted += usize::from(lost && node.ready);
        }
        unlisted * UNLISTED_MAX > total
    }

    fn is_removing(&self, node: &NodeName) -> bool {
        self.flights
            .values()
            .any(|flight| flight.kind == FlightKind::Orphan(node.clone()))
    }
}
