//! Brings what runs in line with what its pool and node class say by now, where that takes no new
//! instance, and stamps it with the hashes of what it is in line with.
//! It must not know what becomes of nodes that have drifted: they are left as they are.
//!
//! What is changed in place, and what is not: docs/decisions/017-what-drifts.md.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::engine::Engine;
use crate::engine::command::{Command, CommandResult, FailureKind, NodePatch};
use crate::engine::in_flight::{ClaimProgress, ClaimStep, CommandPurpose};
use crate::model::claim::{
    ClaimPhase, ClaimRecord, TAG_EXPIRE, TAG_EXPIRE_HARD, TAG_GRACE, TAG_NODE_CLASS_HASH,
    TAG_POOL_HASH, seconds,
};
use crate::model::cluster::Cluster;
use crate::model::id::{ClaimId, InstanceId, PoolName};
use crate::model::labels::{Labels, NODE_CLASS_HASH, POOL_HASH};
use crate::model::node::Node;
use crate::model::pool::Pool;
use crate::model::taint::Effect;
use crate::model::template_hash::{Change, Hashes, hashes_in};
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot_builder::node_labels;

/// Nodes that are changed at once: a pool may have a thousand.
const PATCHES_MAX: usize = 16;
/// Instances of one call; EC2 takes a thousand.
const TAGGED_MAX: usize = 100;

/// What stands in the tags of claims that are in line with their pool.
struct TemplateState {
    pool_hash: String,
    node_class_hash: String,
}

impl TemplateState {
    fn of(cluster: &Cluster, pool: &Pool) -> Self {
        let (pool_hash, node_class_hash) = hashes_in(cluster, pool);
        Self {
            pool_hash,
            node_class_hash,
        }
    }

    /// All that is written on instances.
    fn tags(&self, cluster: &Cluster, pool: &Pool, record: &ClaimRecord) -> Labels {
        let record = ClaimRecord {
            expire_after: pool.expire_after,
            expire_hard_after: pool.expire_hard_after,
            termination_grace_period: pool.termination_grace_period,
            pool_hash: self.pool_hash.clone(),
            node_class_hash: self.node_class_hash.clone(),
            ..record.clone()
        };
        let mut tags = cluster.tags_of(pool.node_class.as_ref());
        let own = record.tags().into_iter();
        let stamped = [TAG_EXPIRE, TAG_GRACE, TAG_POOL_HASH, TAG_NODE_CLASS_HASH];
        tags.extend(own.filter(|(key, _)| stamped.contains(&key.as_str())));
        // Where it is never, a launch says nothing; an instance may have to be told.
        tags.insert(TAG_EXPIRE_HARD.to_owned(), seconds(pool.expire_hard_after));
        tags
    }

    /// Whether a claim may be brought in line, and is not.
    fn is_due(&self, record: &ClaimRecord) -> bool {
        let pairs = [
            (&self.pool_hash, &record.pool_hash),
            (&self.node_class_hash, &record.node_class_hash),
        ];
        let drifted = |(new, old): &(&String, &String)| {
            let new = new.parse::<Hashes>();
            new.is_ok_and(|new| new.since(old) == Change::Drifted)
        };
        pairs.iter().any(|(new, old)| new != old) && !pairs.iter().any(drifted)
    }

    /// Whether a Node has what its pool says.
    fn is_on(&self, node: &Node) -> bool {
        let has = |key: &str, value: &String| node.annotations.get(key) == Some(value);
        has(POOL_HASH, &self.pool_hash) && has(NODE_CLASS_HASH, &self.node_class_hash)
    }
}

impl Engine {
    /// First the Node gets what its pool says, then the instance its tags: the hashes there are
    /// what counts, so that whatever is interrupted is done again.
    pub(super) fn stamp(&mut self, now: Timestamp) {
        if !self.manages() || self.weighed().is_none() {
            return;
        }
        let mut stamps: BTreeMap<&PoolName, TemplateState> = BTreeMap::new();
        let mut patches: Vec<(ClaimId, NodePatch)> = Vec::new();
        let mut tags: BTreeMap<Labels, Vec<(ClaimId, InstanceId)>> = BTreeMap::new();
        for (id, claim) in &self.state.ledger.claims {
            let stays = claim.phase == ClaimPhase::Initialized && claim.takes_pods();
            let pool = self.state.cluster.pool(claim.record.pool.as_str());
            let Some(pool) = pool.filter(|_| stays && self.may_stamp(id, now)) else {
                continue;
            };
            let new = || TemplateState::of(&self.state.cluster, pool);
            let stamp = stamps.entry(&pool.name).or_insert_with(new);
            if !stamp.is_due(&claim.record) {
                continue;
            }
            let node = self.node_of(claim).filter(|own| !self.is_stale(id, own));
            // What is held goes by what it was told before, its age above all.
            let unaccepted = self.state.unaccepted.as_ref();
            let is_held = |own: &&Node| unaccepted.is_some_and(|all| all.nodes.contains(&own.name));
            let node = node.filter(|own| !is_held(own));
            let (Some(node), Some(instance)) = (node, &claim.instance) else {
                continue;
            };
            if stamp.is_on(node) {
                let own = stamp.tags(&self.state.cluster, pool, &claim.record);
                let one = (id.clone(), instance.id.clone());
                tags.entry(own).or_default().push(one);
            } else {
                patches.push((id.clone(), patch(claim, node, pool, stamp)));
            }
        }
        let stamping = |step: &Option<_>| matches!(step, Some((_, ClaimStep::Stamp)));
        let under_way = self
            .works
            .values()
            .filter(|own| stamping(&own.step))
            .count();
        let free = PATCHES_MAX.saturating_sub(under_way);
        for (id, patch) in patches.into_iter().take(free) {
            self.step(&id, ClaimStep::Stamp, Command::PatchNode(patch), now);
        }
        for (tags, all) in tags {
            for some in all.chunks(TAGGED_MAX) {
                self.tag(some, &tags, now);
            }
        }
    }

    /// What a claim's Node is to have from us, whatever it has.
    pub(super) fn stamping(&self, claim: &NodeClaim, node: &Node) -> Option<NodePatch> {
        let pool = self.state.cluster.pool(claim.record.pool.as_str())?;
        let stamp = TemplateState::of(&self.state.cluster, pool);
        Some(patch(claim, node, pool, &stamp))
    }

    fn may_stamp(&self, id: &ClaimId, now: Timestamp) -> bool {
        let busy = |own: &ClaimProgress| {
            let waits = !own.retry.is_due(now) || !own.tag_again.is_due(now);
            own.step.is_some() || own.tagging || waits
        };
        !self.works.get(id).is_some_and(busy)
    }

    fn tag(&mut self, all: &[(ClaimId, InstanceId)], tags: &Labels, now: Timestamp) {
        let claims: Vec<ClaimId> = all.iter().map(|(id, _)| id.clone()).collect();
        for id in &claims {
            self.works.entry(id.clone()).or_default().tagging = true;
        }
        let command = Command::Tag {
            instances: all.iter().map(|(_, instance)| instance.clone()).collect(),
            tags: tags.clone(),
        };
        self.issue(command, CommandPurpose::Tag(claims, tags.clone()), now);
    }

    /// What the tags of instances say is what is known of their claims. A provider that keeps no
    /// tags but those of a launch is not asked again before the next start.
    pub(super) fn tagged(
        &mut self,
        claims: &[ClaimId],
        tags: &Labels,
        answer: &CommandResult,
        now: Timestamp,
    ) {
        let never = matches!(
            answer,
            CommandResult::Failed {
                kind: FailureKind::Invalid,
                ..
            }
        );
        let done = never || *answer == CommandResult::Done;
        let cluster = self.state.cluster.clone();
        for id in claims {
            let Some(work) = self.works.get_mut(id) else {
                continue;
            };
            work.tagging = false;
            if !done {
                work.tag_again.failed(now, &mut self.rng);
                continue;
            }
            work.tag_again = Default::default();
            let Some(claim) = self.state.ledger.claims.get_mut(id) else {
                continue;
            };
            let mut all = claim.record.tags();
            all.extend(tags.clone());
            let record = ClaimRecord::from_tags(&all, &cluster.installation, &cluster.name);
            if let Ok(record) = record {
                claim.record = record;
            }
        }
    }
}

/// Labels, annotations and taints that a pool says, and the hashes of that. What it says no more
/// stays: nobody knows who else wants it. A taint that evicts is for new nodes only.
fn patch(claim: &NodeClaim, node: &Node, pool: &Pool, stamp: &TemplateState) -> NodePatch {
    let mut annotations = pool.annotations.clone();
    annotations.insert(POOL_HASH.to_owned(), stamp.pool_hash.clone());
    annotations.insert(NODE_CLASS_HASH.to_owned(), stamp.node_class_hash.clone());
    let mut taints = node.taints.clone();
    for wanted in pool
        .taints
        .iter()
        .filter(|own| own.effect != Effect::NoExecute)
    {
        if !taints.contains(wanted) {
            // One of the same key and effect has another value by now.
            taints.retain(|own| !own.matches(wanted));
            taints.push(wanted.clone());
        }
    }
    let set = |all: Labels| all.into_iter().map(|(key, value)| (key, Some(value)));
    NodePatch {
        node: node.name.clone(),
        version: node.version.clone(),
        labels: set(node_labels(claim, pool)).collect(),
        annotations: set(annotations).collect(),
        taints: (taints != node.taints).then_some(taints),
        ..NodePatch::default()
    }
}
