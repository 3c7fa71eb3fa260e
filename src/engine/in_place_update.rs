//! Updates running nodes and instances to match their pool and node class, if no new instance is
//! required, and records the hashes they match.
//!
//! docs/decisions/017-what-drifts.md lists what is updated in place.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::engine::claim_steps;
use crate::engine::claims;
use crate::engine::command::{Command, NodePatch};
use crate::engine::context::Context;
use crate::engine::in_flight::{ClaimStep, CommandPurpose};
use crate::model::claim::{
    ClaimPhase, ClaimRecord, TAG_EXPIRE, TAG_EXPIRE_HARD, TAG_GRACE, TAG_NODE_CLASS_HASH,
    TAG_POOL_HASH, seconds_tag,
};
use crate::model::cluster::Cluster;
use crate::model::id::{ClaimId, InstanceId, PoolName};
use crate::model::labels::{Labels, NODE_CLASS_HASH, POOL_HASH};
use crate::model::node::Node;
use crate::model::pool::Pool;
use crate::model::taint::Effect;
use crate::model::template_hash::{Change, Hashes, hashes_in};
use crate::provider::{CommandResult, FailureKind};
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot_builder::node_labels;

/// Maximum number of nodes updated simultaneously: a pool may have a thousand.
const PATCHES_MAX: usize = 16;
/// Maximum number of instances per call. EC2 accepts a thousand.
const TAGGED_MAX: usize = 100;

/// The tag values of a claim that matches its pool.
struct TemplateState {
    pool_hash: String,
    node_class_hash: String,
}

impl TemplateState {
    fn for_pool(cluster: &Cluster, pool: &Pool) -> Self {
        let (pool_hash, node_class_hash) = hashes_in(cluster, pool);
        Self { pool_hash, node_class_hash }
    }

    /// Returns all tags for the instances.
    fn tags_for(&self, cluster: &Cluster, pool: &Pool, record: &ClaimRecord) -> Labels {
        let record = ClaimRecord {
            expire_after: pool.expire_after,
            expire_hard_after: pool.expire_hard_after,
            termination_grace_period: pool.termination_grace_period,
            pool_hash: self.pool_hash.clone(),
            node_class_hash: self.node_class_hash.clone(),
            ..record.clone()
        };
        let mut tags = cluster.tags_of(pool.node_class.as_ref());
        let stamped = [TAG_EXPIRE, TAG_GRACE, TAG_POOL_HASH, TAG_NODE_CLASS_HASH];
        let record_tags = record.to_tags().into_iter();
        tags.extend(record_tags.filter(|(key, _)| stamped.contains(&key.as_str())));
        // A launch omits the tag if nodes never expire. On an existing instance, the value of the
        // tag must be changed.
        tags.insert(TAG_EXPIRE_HARD.to_owned(), seconds_tag(pool.expire_hard_after));
        tags
    }

    /// Returns whether a claim does not match its pool and may be updated.
    fn is_due(&self, record: &ClaimRecord) -> bool {
        let pairs = [
            (&self.pool_hash, &record.pool_hash),
            (&self.node_class_hash, &record.node_class_hash),
        ];
        pairs.iter().any(|(new, old)| new != old)
            && !pairs.iter().any(|(new, old)| {
                let new = new.parse::<Hashes>();
                new.is_ok_and(|new| new.change_since(old) == Change::Drifted)
            })
    }

    /// Returns whether a Node matches its pool.
    fn matches_node(&self, node: &Node) -> bool {
        node.annotations.get(POOL_HASH) == Some(&self.pool_hash)
            && node.annotations.get(NODE_CLASS_HASH) == Some(&self.node_class_hash)
    }
}

/// Updates the Node first and then the tags of the instance. The hashes in the tags are
/// decisive, so that an interrupted update is repeated.
pub(super) fn update_in_place(cx: &mut Context, now: Timestamp) {
    if !cx.is_managing() || cx.pending_approval().is_none() {
        return;
    }
    let mut stamps: BTreeMap<&PoolName, TemplateState> = BTreeMap::new();
    let mut patches: Vec<(ClaimId, NodePatch)> = Vec::new();
    let mut tags: BTreeMap<Labels, Vec<(ClaimId, InstanceId)>> = BTreeMap::new();
    for (id, claim) in &cx.state.ledger.claims {
        let stays = claim.phase == ClaimPhase::Initialized && claim.takes_pods();
        let pool = cx.state.cluster.pool(claim.record.pool.as_str());
        let Some(pool) = pool.filter(|_| stays && may_stamp(cx, id, now)) else {
            continue;
        };
        let template = stamps
            .entry(&pool.name)
            .or_insert_with(|| TemplateState::for_pool(&cx.state.cluster, pool));
        if !template.is_due(&claim.record) {
            continue;
        }
        // Nodes that wait for an approval keep their previous settings, above all their maximum
        // age.
        let held = cx.state.unaccepted.as_ref().map(|approval| &approval.nodes);
        let node = cx
            .node_of(claim)
            .filter(|node| !claims::is_stale(cx, id, node))
            .filter(|node| !held.is_some_and(|held| held.contains(&node.name)));
        let (Some(node), Some(instance)) = (node, &claim.instance) else {
            continue;
        };
        if template.matches_node(node) {
            let claim_tags = template.tags_for(&cx.state.cluster, pool, &claim.record);
            let tagged = tags.entry(claim_tags).or_default();
            tagged.push((id.clone(), instance.id.clone()));
        } else {
            patches.push((id.clone(), template_patch(claim, node, pool, template)));
        }
    }
    let under_way = cx
        .progress
        .values()
        .filter(|progress| matches!(progress.step, Some((_, ClaimStep::Stamp))))
        .count();
    let free = PATCHES_MAX.saturating_sub(under_way);
    for (id, patch) in patches.into_iter().take(free) {
        claim_steps::send_step(cx, &id, ClaimStep::Stamp, Command::PatchNode(patch), now);
    }
    for (tags, instances) in tags {
        for chunk in instances.chunks(TAGGED_MAX) {
            tag_instances(cx, chunk, &tags, now);
        }
    }
}

/// Returns the patch that makes a claim's Node match its pool.
pub(super) fn node_patch_for(cx: &Context, claim: &NodeClaim, node: &Node) -> Option<NodePatch> {
    let pool = cx.state.cluster.pool(claim.record.pool.as_str())?;
    let template = TemplateState::for_pool(&cx.state.cluster, pool);
    Some(template_patch(claim, node, pool, &template))
}

fn may_stamp(cx: &Context, id: &ClaimId, now: Timestamp) -> bool {
    !cx.progress.get(id).is_some_and(|progress| {
        let waits = !progress.retry.is_due(now) || !progress.tag_again.is_due(now);
        progress.step.is_some() || progress.tagging || waits
    })
}

fn tag_instances(
    cx: &mut Context,
    instances: &[(ClaimId, InstanceId)],
    tags: &Labels,
    now: Timestamp,
) {
    let claims: Vec<ClaimId> = instances.iter().map(|(id, _)| id.clone()).collect();
    for id in &claims {
        cx.progress_of(id).tagging = true;
    }
    let command = Command::Tag {
        instances: instances.iter().map(|(_, instance)| instance.clone()).collect(),
        tags: tags.clone(),
    };
    cx.outbox.queue_command(command, CommandPurpose::Tag(claims, tags.clone()), now);
}

/// Records the new tags in the claims. If the provider rejects the tags as invalid, the engine does
/// not send them again before its next start.
pub(super) fn on_tag_result(
    cx: &mut Context,
    claims: &[ClaimId],
    tags: &Labels,
    result: &CommandResult,
    now: Timestamp,
) {
    let never = result.failure() == Some(FailureKind::Invalid);
    let done = never || *result == CommandResult::Done;
    let cluster = cx.state.cluster.clone();
    for id in claims {
        let Some(progress) = cx.progress.get_mut(id) else {
            continue;
        };
        progress.tagging = false;
        if !done {
            progress.tag_again.record_failure(now, &mut cx.rng);
            continue;
        }
        progress.tag_again = Default::default();
        let Some(claim) = cx.state.ledger.claims.get_mut(id) else {
            continue;
        };
        let mut merged = claim.record.to_tags();
        merged.extend(tags.clone());
        let record = ClaimRecord::from_tags(&merged, &cluster.installation, &cluster.name);
        if let Ok(record) = record {
            claim.record = record;
        }
    }
}

/// Returns the patch that sets the labels, annotations and taints of the pool, and the hashes.
/// Values removed from the pool are kept, because other clients may use them. A taint that evicts
/// pods is set only on new nodes.
fn template_patch(
    claim: &NodeClaim,
    node: &Node,
    pool: &Pool,
    template: &TemplateState,
) -> NodePatch {
    let mut annotations = pool.annotations.clone();
    annotations.insert(POOL_HASH.to_owned(), template.pool_hash.clone());
    annotations.insert(NODE_CLASS_HASH.to_owned(), template.node_class_hash.clone());
    let mut taints = node.taints.clone();
    for wanted in pool.taints.iter().filter(|taint| taint.effect != Effect::NoExecute) {
        if !taints.contains(wanted) {
            // The Node may have a taint of the same key and effect with a different value.
            taints.retain(|taint| !taint.matches(wanted));
            taints.push(wanted.clone());
        }
    }
    NodePatch {
        labels: NodePatch::set_values(node_labels(claim, pool)),
        annotations: NodePatch::set_values(annotations),
        taints: (taints != node.taints).then_some(taints),
        ..NodePatch::for_node(node)
    }
}
