//! Claims: one requested node each, from plan to termination, and the tags that store them.
//!
//! ```text
//!                  rejected: planned again under a new ID
//!                 ┌──────────────▲
//! Planned ─► Launching ─► Launched ─► Registered ─► Initialized ─► Draining ─► Terminating ─► Gone
//!                 │            │            │  past its deadline        ▲            ▲
//!                 └────────────┴────────────┴───────────────────────────┴────────────┘
//! ```

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::model::id::{ClaimId, ClusterName, ClusterUid, InstanceId, NodeClassName, PoolName};
use crate::model::instance::Instance;
use crate::model::labels::Labels;
use crate::model::named_enum::named_enum;
use crate::model::taint::{Effect, Taint};

named_enum! {
    /// The phase of a claim. The names appear in logs and metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ClaimPhase {
        /// The claim is planned, and its launch is not requested yet.
        Planned => "planned",
        /// The launch is requested, and has no response yet.
        Launching => "launching",
        /// The instance exists.
        Launched => "launched",
        /// The Node exists and belongs to the claim.
        Registered => "registered",
        /// The Node can run pods.
        Initialized => "initialized",
        /// The node is being drained.
        Draining => "draining",
        /// The instance is being terminated.
        Terminating => "terminating",
        /// The instance and the Node no longer exist.
        Gone => "gone",
    }
}

/// Version of the tag schema below.
pub const SCHEMA_VERSION: &str = "1";

/// Tag: version of the tag schema.
pub const TAG_SCHEMA: &str = "outrigger.dev/schema-version";
/// Tag: the installation.
pub const TAG_INSTALLATION: &str = "outrigger.dev/installation";
/// Tag: the cluster's name as configured.
pub const TAG_CLUSTER: &str = "outrigger.dev/cluster";
/// Tag: the cluster's UID, which identifies the API server. Instances launched by version 0.1 lack
/// it.
pub const TAG_CLUSTER_UID: &str = "outrigger.dev/cluster-uid";
/// Tag: the Lease under which the claim was launched. Instances launched by version 0.1 lack it.
pub const TAG_LEASE: &str = "outrigger.dev/lease";
/// Tag: the pool.
pub const TAG_POOL: &str = "karpenter.sh/nodepool";
/// Tag: the node class.
pub const TAG_NODE_CLASS: &str = "karpenter.k8s.aws/ec2nodeclass";
/// Tag: the claim's id. An instance of a batch has the tag of the batch instead.
pub const TAG_CLAIM: &str = "outrigger.dev/claim";
/// Tag: the batch of claims that one call launched together. The claim's id is a hash of the batch
/// and the instance, because a call sets the same tags on all its instances. See
/// docs/decisions/041-launches-in-batches.md.
pub const TAG_BATCH: &str = "outrigger.dev/batch";
/// Tag: when the claim was planned (RFC 3339).
pub const TAG_CREATED: &str = "outrigger.dev/created-at";
/// Tag: seconds after which the node expires, or `never`.
pub const TAG_EXPIRE: &str = "outrigger.dev/expire-after";
/// Tag: seconds after which the node expires regardless of budgets, or `never`. A missing tag means
/// never.
pub const TAG_EXPIRE_HARD: &str = "outrigger.dev/expire-hard-after";
/// Tag: maximum drain time in seconds (`termination_grace_period`), or `never`.
pub const TAG_GRACE: &str = "outrigger.dev/termination-grace-period";
/// Tag: hash of the pool's template, `v1:…`.
pub const TAG_POOL_HASH: &str = "outrigger.dev/pool-hash";
/// Tag: hash of the node class, `v1:…`.
pub const TAG_NODE_CLASS_HASH: &str = "outrigger.dev/node-class-hash";
/// Tag: startup taints, `key=value:Effect` joined by spaces.
pub const TAG_STARTUP_TAINTS: &str = "outrigger.dev/startup-taints";
/// Tag: why the claim was created.
pub const TAG_REASON: &str = "outrigger.dev/reason";
/// Tag: the decision that created the claim.
pub const TAG_COMMAND: &str = "outrigger.dev/command-id";

/// Letters of generated claim IDs.
pub const ID_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Length of the claim IDs of batches.
const BATCH_CLAIM_ID_LENGTH: usize = 20;

/// Tag: the fleet that launched an instance. Only EC2 can write it, so a copy of an instance lacks
/// it. Source: EC2, "Tag your Amazon EC2 resources" (the prefix `aws:` is reserved).
pub const TAG_FLEET: &str = "aws:ec2:fleet-id";
/// The reason of a claim whose instance Outrigger did not launch but adopted.
pub const ADOPTED: &str = "adopted";

/// Tag: the name of an instance in lists of EC2.
pub const TAG_NAME: &str = "Name";
/// Tag: the EKS cluster of an instance, if any.
pub const TAG_EKS: &str = "eks:eks-cluster-name";
/// Prefix of the tag that marks resources of a cluster, followed by the cluster name. The value is
/// `owned`.
pub const TAG_OWNED: &str = "kubernetes.io/cluster/";

/// Tags that may differ between claims of one pool. Resources that claims share must not have them.
pub const TAGS_OF_ONE_CLAIM: [&str; 11] = [
    TAG_CLAIM,
    TAG_BATCH,
    TAG_CREATED,
    TAG_EXPIRE,
    TAG_EXPIRE_HARD,
    TAG_GRACE,
    TAG_POOL_HASH,
    TAG_NODE_CLASS_HASH,
    TAG_STARTUP_TAINTS,
    TAG_REASON,
    TAG_COMMAND,
];

/// The origin of a claim. It distinguishes claims of this cluster from claims that a daemon
/// launched for a different cluster of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimOrigin {
    /// The cluster's UID. `None` if version 0.1 launched the instance.
    pub cluster_uid: Option<ClusterUid>,
    /// The Lease under which the claim was launched, `NAMESPACE/NAME`. `None` if version 0.1
    /// launched the instance.
    pub lease: Option<String>,
}

impl ClaimOrigin {
    fn to_tags(&self) -> impl Iterator<Item = (String, String)> {
        let uid = self.cluster_uid.as_ref().map(ToString::to_string);
        [(TAG_CLUSTER_UID, uid), (TAG_LEASE, self.lease.clone())]
            .into_iter()
            .filter_map(|(tag, value)| Some((tag.to_owned(), value?)))
    }

    fn from_tags(tags: &Labels) -> Self {
        let [uid, lease] =
            [TAG_CLUSTER_UID, TAG_LEASE].map(|tag| tags.get(tag).filter(|value| !value.is_empty()));
        Self { cluster_uid: uid.map(|uid| uid.as_str().into()), lease: lease.cloned() }
    }
}

/// The contents of the instance's tags: everything that a restart needs to restore a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimRecord {
    /// The claim's id, also the client token of its launch.
    pub id: ClaimId,
    /// The installation.
    pub installation: String,
    /// The cluster.
    pub cluster: ClusterName,
    /// The origin of its launch.
    pub origin: ClaimOrigin,
    /// The pool.
    pub pool: PoolName,
    /// The node class, if the pool has one.
    pub node_class: Option<NodeClassName>,
    /// When the claim was planned.
    pub created: Timestamp,
    /// Age at which its node expires. `None` means never.
    pub expire_after: Option<SignedDuration>,
    /// Age at which its node expires regardless of budgets and annotations. `None` means never.
    pub expire_hard_after: Option<SignedDuration>,
    /// Maximum drain time. `None` means unlimited.
    pub termination_grace_period: Option<SignedDuration>,
    /// Hash of the pool's template.
    pub pool_hash: String,
    /// Hash of the node class.
    pub node_class_hash: String,
    /// Startup taints with which its node registers.
    pub startup_taints: Vec<Taint>,
    /// Why the claim was created.
    pub reason: String,
    /// The decision that created the claim.
    pub command_id: String,
}

/// Why the tags of an instance are not a claim of this installation and cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotAClaim {
    /// The instance belongs to a different installation or cluster, or has no owner. Such an
    /// instance is never changed.
    #[error("the instance is not of this installation and cluster")]
    Foreign,
    /// The instance belongs to this installation and cluster, but a tag is missing or invalid.
    #[error("the tag {0} is missing or cannot be read")]
    Unreadable(&'static str),
}

/// EC2 allows 256 characters in a tag value.
pub const TAG_VALUE_MAX: usize = 256;

/// Formats startup taints for a tag. The configuration checks their length: a truncated tag could
/// not be parsed, and the instance would have no owner.
pub fn startup_taints_tag(taints: &[Taint]) -> String {
    let taints: Vec<String> = taints.iter().map(ToString::to_string).collect();
    taints.join(" ")
}

/// Formats a duration for a tag.
pub fn seconds_tag(duration: Option<SignedDuration>) -> String {
    duration.map_or("never".to_owned(), |age| age.as_secs().to_string())
}

impl ClaimRecord {
    /// Returns whether the node must be disrupted now, regardless of budgets and annotations.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.expire_hard_after
            .and_then(|age| self.created.checked_add(age).ok())
            .is_some_and(|at| at <= now)
    }

    /// The tags of the launch call.
    pub fn to_tags(&self) -> Labels {
        let expire_hard =
            self.expire_hard_after.map(|age| (TAG_EXPIRE_HARD.to_owned(), seconds_tag(Some(age))));
        let node_class = self.node_class.as_ref().map_or("", NodeClassName::as_str);
        [
            (TAG_SCHEMA, SCHEMA_VERSION.to_owned()),
            (TAG_INSTALLATION, self.installation.clone()),
            (TAG_CLUSTER, self.cluster.to_string()),
            (TAG_POOL, self.pool.to_string()),
            (TAG_NODE_CLASS, node_class.to_owned()),
            (TAG_CLAIM, self.id.to_string()),
            (TAG_CREATED, self.created.to_string()),
            (TAG_EXPIRE, seconds_tag(self.expire_after)),
            (TAG_GRACE, seconds_tag(self.termination_grace_period)),
            (TAG_POOL_HASH, self.pool_hash.clone()),
            (TAG_NODE_CLASS_HASH, self.node_class_hash.clone()),
            (TAG_STARTUP_TAINTS, startup_taints_tag(&self.startup_taints)),
            (TAG_REASON, self.reason.clone()),
            (TAG_COMMAND, self.command_id.clone()),
            (&format!("{TAG_OWNED}{}", self.cluster), "owned".to_owned()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .chain(self.origin.to_tags())
        .chain(expire_hard)
        .collect()
    }

    /// Reads a claim back from an instance, which may be of a batch.
    pub fn of_instance(
        instance: &Instance,
        installation: &str,
        cluster: &ClusterName,
    ) -> Result<Self, NotAClaim> {
        let id = claim_id(&instance.tags, &instance.id);
        Self::parse(&instance.tags, id, installation, cluster)
    }

    /// Reads a claim back from the tags of a launch.
    pub fn from_tags(
        tags: &Labels,
        installation: &str,
        cluster: &ClusterName,
    ) -> Result<Self, NotAClaim> {
        Self::parse(tags, non_empty_tag(tags, TAG_CLAIM).map(ClaimId::from), installation, cluster)
    }

    fn parse(
        tags: &Labels,
        id: Option<ClaimId>,
        installation: &str,
        cluster: &ClusterName,
    ) -> Result<Self, NotAClaim> {
        if !is_owned_by(tags, installation, cluster) {
            return Err(NotAClaim::Foreign);
        }
        if tags.get(TAG_SCHEMA).map(String::as_str) != Some(SCHEMA_VERSION) {
            return Err(NotAClaim::Unreadable(TAG_SCHEMA));
        }
        let startup_taints = required_tag(tags, TAG_STARTUP_TAINTS)?
            .split_whitespace()
            .map(|text| parse_taint(text).ok_or(NotAClaim::Unreadable(TAG_STARTUP_TAINTS)))
            .collect::<Result<_, _>>()?;
        let id = id.ok_or(NotAClaim::Unreadable(TAG_CLAIM))?;
        let node_class = required_tag(tags, TAG_NODE_CLASS)?;
        Ok(Self {
            id,
            installation: installation.to_owned(),
            cluster: cluster.clone(),
            origin: ClaimOrigin::from_tags(tags),
            pool: required_tag(tags, TAG_POOL)?.into(),
            node_class: (!node_class.is_empty()).then(|| node_class.into()),
            created: required_tag(tags, TAG_CREATED)?
                .parse()
                .map_err(|_| NotAClaim::Unreadable(TAG_CREATED))?,
            expire_after: duration_tag(tags, TAG_EXPIRE)?,
            // Claims of an earlier release lack the tag.
            expire_hard_after: match tags.contains_key(TAG_EXPIRE_HARD) {
                true => duration_tag(tags, TAG_EXPIRE_HARD)?,
                false => None,
            },
            termination_grace_period: duration_tag(tags, TAG_GRACE)?,
            pool_hash: required_tag(tags, TAG_POOL_HASH)?.to_owned(),
            node_class_hash: required_tag(tags, TAG_NODE_CLASS_HASH)?.to_owned(),
            startup_taints,
            reason: required_tag(tags, TAG_REASON)?.to_owned(),
            command_id: required_tag(tags, TAG_COMMAND)?.to_owned(),
        })
    }
}

/// Returns the id of the claim of an instance: its tag, or a hash of its batch and its id. A user
/// who copies the tags of an instance cannot copy the tag of its fleet, so a copy is no claim of
/// the batch.
pub fn claim_id(tags: &Labels, instance: &InstanceId) -> Option<ClaimId> {
    if let Some(id) = non_empty_tag(tags, TAG_CLAIM) {
        return Some(ClaimId::from(id));
    }
    let batch = non_empty_tag(tags, TAG_BATCH).filter(|_| tags.contains_key(TAG_FLEET))?;
    let hash = Sha256::digest(format!("{batch}/{instance}"));
    let letter = |byte: &u8| char::from(ID_ALPHABET[usize::from(byte % 32)]);
    let letters: String = hash.iter().take(BATCH_CLAIM_ID_LENGTH).map(letter).collect();
    Some(ClaimId::from(letters))
}

/// Returns whether the tags of an instance name this installation and cluster.
pub fn is_owned_by(tags: &Labels, installation: &str, cluster: &ClusterName) -> bool {
    tags.get(TAG_INSTALLATION).map(String::as_str) == Some(installation)
        && tags.get(TAG_CLUSTER).map(String::as_str) == Some(cluster.as_str())
}

fn non_empty_tag<'a>(tags: &'a Labels, tag: &str) -> Option<&'a str> {
    tags.get(tag).map(String::as_str).filter(|value| !value.is_empty())
}

/// The value of a tag that every claim has.
fn required_tag<'a>(tags: &'a Labels, tag: &'static str) -> Result<&'a str, NotAClaim> {
    let value = tags.get(tag).map(String::as_str);
    value.ok_or(NotAClaim::Unreadable(tag))
}

/// Reads a tag that [`seconds_tag`] has formatted.
fn duration_tag(tags: &Labels, tag: &'static str) -> Result<Option<SignedDuration>, NotAClaim> {
    match required_tag(tags, tag)? {
        "never" => Ok(None),
        text => text
            .parse()
            .map(|seconds| Some(SignedDuration::from_secs(seconds)))
            .map_err(|_| NotAClaim::Unreadable(tag)),
    }
}

fn parse_taint(text: &str) -> Option<Taint> {
    let (key_value, effect) = text.rsplit_once(':')?;
    let (key, value) = key_value.split_once('=').unwrap_or((key_value, ""));
    let effect = Effect::parse(effect)?;
    Some(Taint { key: key.to_owned(), value: value.to_owned(), effect })
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::{ClaimOrigin, ClaimRecord, NotAClaim, TAG_CLUSTER_UID, TAG_EXPIRE, TAG_LEASE};
    use crate::model::taint::{Effect, Taint};

    #[test]
    fn claim_round_trips_through_tags() {
        let record = ClaimRecord {
            id: "abc".into(),
            installation: "here".into(),
            cluster: "prod".into(),
            origin: ClaimOrigin {
                cluster_uid: Some("ns:1".into()),
                lease: Some("kube-system/outrigger".to_owned()),
            },
            pool: "general".into(),
            node_class: Some("gpu".into()),
            created: Timestamp::from_second(1_800_000_000).expect("in range"),
            expire_after: Some(SignedDuration::from_hours(720)),
            expire_hard_after: None,
            termination_grace_period: None,
            pool_hash: "v1:1".into(),
            node_class_hash: "v1:2".into(),
            startup_taints: vec![Taint {
                key: "a/b".into(),
                value: "c".into(),
                effect: Effect::NoExecute,
            }],
            reason: "provisioned".into(),
            command_id: "d1".into(),
        };
        let mut tags = record.to_tags();
        let read = |tags: &_, cluster: &str| ClaimRecord::from_tags(tags, "here", &cluster.into());
        assert_eq!(read(&tags, "prod").as_ref(), Ok(&record));
        // The tags of a launch of 0.1.
        let (mut old, mut unknown) = (tags.clone(), record.clone());
        old.retain(|key, _| key != TAG_CLUSTER_UID && key != TAG_LEASE);
        unknown.origin = ClaimOrigin::default();
        assert_eq!(read(&old, "prod").as_ref(), Ok(&unknown));
        let hard =
            ClaimRecord { expire_hard_after: Some(SignedDuration::from_hours(800)), ..record };
        assert_eq!(read(&hard.to_tags(), "prod"), Ok(hard));
        assert_eq!(read(&tags, "other"), Err(NotAClaim::Foreign));
        let elsewhere = ClaimRecord::from_tags(&tags, "elsewhere", &"prod".into());
        assert_eq!(elsewhere, Err(NotAClaim::Foreign));
        tags.insert(TAG_EXPIRE.into(), "soon".into());
        assert_eq!(read(&tags, "prod"), Err(NotAClaim::Unreadable(TAG_EXPIRE)));
    }
}
