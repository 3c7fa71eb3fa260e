//! Reports the memory of nodes, which improves the estimates for new nodes.
//!
//! Source: spec/aws.md §4.6.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::in_flight::CommandPurpose;
use crate::engine::report::Report;
use crate::model::id::{ClaimId, TypeName};
use crate::state::node_claims::NodeClaim;

/// Memory that nodes have reported.
#[derive(Debug, Default)]
pub(super) struct DiscoveredMemory {
    /// The smallest memory reported to the provider, by instance type and image.
    pub(super) reported: BTreeMap<(TypeName, String), i64>,
}

impl DiscoveredMemory {
    /// Reports to the provider that nodes have less memory than recorded, once per instance type
    /// and image. The reported values are not kept after a restart. Providers without image names
    /// get no reports.
    pub(super) fn report_memory(&mut self, cx: &mut Context, now: Timestamp) {
        if !cx.is_managing() {
            return;
        }
        let mut seen: BTreeMap<(TypeName, String), i64> = BTreeMap::new();
        for claim in cx.state.ledger.claims.values() {
            let Some((instance_type, image, memory)) = cx.reported_memory(claim) else {
                continue;
            };
            let key = (instance_type.clone(), image.to_owned());
            let smallest = seen.entry(key).or_insert(memory);
            *smallest = (*smallest).min(memory);
        }
        self.reported.retain(|key, _| seen.contains_key(key));
        for (key, memory) in seen {
            if self.reported.get(&key).is_some_and(|known| *known <= memory) {
                continue;
            }
            self.reported.insert(key.clone(), memory);
            let (instance_type, image) = key;
            let command = Command::SaveDiscoveredMemory { instance_type, image, memory };
            cx.outbox.queue_command(command, CommandPurpose::SaveDiscoveredMemory, now);
        }
    }
}

impl Context {
    /// Returns the instance type and image of a claim's node, and the memory that its kubelet
    /// reports.
    fn reported_memory<'a>(&'a self, claim: &'a NodeClaim) -> Option<(&'a TypeName, &'a str, i64)> {
        let instance = claim.instance.as_ref().filter(|_| claim.has_joined())?;
        let image = instance.facts.as_ref()?.image.as_deref()?;
        let memory = self.node_of(claim)?.capacity.memory;
        (memory > 0).then_some((&instance.offering.instance_type, image, memory))
    }
}

/// Reports once that a node has less capacity than its instance type: pods planned onto it may
/// not fit. Source: spec/disruption.md §3.6.
pub(super) fn report_missing_capacity(cx: &mut Context, id: &ClaimId) {
    let known = cx.claim(id).and_then(|claim| {
        let name = &claim.instance.as_ref()?.offering.instance_type;
        let catalog = cx.state.catalog_of(&claim.record.pool);
        Some((cx.node_of(claim)?, catalog.get(name.as_str())?))
    });
    let Some((node, promised)) = known else {
        return;
    };
    let (has, promised, name) = (&node.capacity, &promised.capacity, &promised.name);
    let resources = [
        ("cpu", promised.cpu_milli, has.cpu_milli),
        ("memory", promised.memory, has.memory),
        ("pods", promised.pods, has.pods),
    ];
    let lacking = resources
        .into_iter()
        .filter(|(_, promised, found)| found * 10 < promised * 9)
        .map(|(resource, promised, found)| Report::Lacking {
            node: node.name.clone(),
            instance_type: name.clone(),
            resource,
            promised,
            found,
        });
    let lacking: Vec<Report> = lacking.collect();
    let reported = &mut cx.progress.entry(id.clone()).or_default().told_lacking;
    if !lacking.is_empty() && !std::mem::replace(reported, true) {
        cx.outbox.reports.extend(lacking);
    }
}
