//! JSON format of launches, instances and responses between the daemon and clouds in other
//! processes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::model::claim::{ClaimRecord, NotAClaim};
use crate::model::cluster::Kubeconfig;
use crate::model::id::{ClusterName, NodeName};
use crate::model::instance::{CapacityType, ExpectedNode, Instance, InstanceState, OfferingKey};
use crate::model::labels::Labels;
use crate::model::taint::{Effect, Taint};
use crate::provider::{Adoption, CommandResult, FailureKind, Launch, OfferingRefusal, RefusalKind};

/// Why a body is not a valid request or response.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The tags are not those of a claim.
    #[error("{0}")]
    Claim(NotAClaim),
    /// An unknown capacity type.
    #[error("{0:?} is not a capacity type")]
    CapacityType(String),
    /// An unknown taint effect.
    #[error("{0:?} is not a taint effect")]
    TaintEffect(String),
    /// An unknown instance state.
    #[error("{0:?} is not an instance state")]
    InstanceState(String),
    /// An unknown kind of refusal.
    #[error("{0:?} is not a refusal kind")]
    RefusalKind(String),
}

/// The API server that nodes register with.
#[derive(Debug, Serialize, Deserialize)]
pub struct HomeBody {
    kubeconfig: PathBuf,
    context: Option<String>,
}

impl HomeBody {
    fn new(home: &Kubeconfig) -> Self {
        Self { kubeconfig: home.path.clone(), context: home.context.clone() }
    }

    /// The kubeconfig of the API server.
    pub fn to_kubeconfig(&self) -> Kubeconfig {
        Kubeconfig { path: self.kubeconfig.clone(), context: self.context.clone() }
    }
}

/// `POST /v1/adopt`.
#[derive(Debug, Serialize, Deserialize)]
pub struct AdoptBody {
    /// The API server of the cluster.
    #[serde(flatten)]
    pub home: HomeBody,
    installation: String,
    cluster: String,
    claim_tags: Labels,
    instance: String,
    offering: OfferingBody,
    tags: Labels,
}

impl AdoptBody {
    /// The request for this adoption.
    pub fn new(adoption: Adoption, home: &Kubeconfig) -> Self {
        Self {
            home: HomeBody::new(home),
            installation: adoption.claim.installation.clone(),
            cluster: adoption.claim.cluster.to_string(),
            claim_tags: adoption.claim.to_tags(),
            instance: adoption.instance.0,
            offering: adoption.offering.into(),
            tags: adoption.tags,
        }
    }

    /// Parses the request.
    pub fn into_adoption(self) -> Result<Adoption, FormatError> {
        Ok(Adoption {
            claim: parse_claim(&self.claim_tags, &self.installation, self.cluster)?,
            instance: self.instance.into(),
            offering: self.offering.try_into()?,
            tags: self.tags,
        })
    }
}

fn parse_claim(
    tags: &Labels,
    installation: &str,
    cluster: String,
) -> Result<ClaimRecord, FormatError> {
    ClaimRecord::from_tags(tags, installation, &ClusterName(cluster)).map_err(FormatError::Claim)
}

/// `POST /v1/launch`.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaunchBody {
    /// The API server of the cluster.
    #[serde(flatten)]
    pub home: HomeBody,
    installation: String,
    cluster: String,
    claim_tags: Labels,
    offerings: Vec<OfferingBody>,
    labels: Labels,
    taints: Vec<TaintBody>,
    tags: Labels,
}

impl LaunchBody {
    /// The request for this launch.
    pub fn new(launch: Launch, home: &Kubeconfig) -> Self {
        Self {
            home: HomeBody::new(home),
            installation: launch.claim.installation.clone(),
            cluster: launch.claim.cluster.to_string(),
            claim_tags: launch.claim.to_tags(),
            offerings: launch.offerings.into_iter().map(OfferingBody::from).collect(),
            labels: launch.labels,
            taints: launch.taints.into_iter().map(TaintBody::from).collect(),
            tags: launch.tags,
        }
    }

    /// Parses the request.
    pub fn into_launch(self) -> Result<Launch, FormatError> {
        let claim = parse_claim(&self.claim_tags, &self.installation, self.cluster)?;
        let offerings = self.offerings.into_iter().map(OfferingKey::try_from);
        let taints = self.taints.into_iter().map(Taint::try_from);
        Ok(Launch {
            claim,
            offerings: offerings.collect::<Result<_, _>>()?,
            labels: self.labels,
            taints: taints.collect::<Result<_, _>>()?,
            tags: self.tags,
            // A simulated cloud has no templates and uses its own prices.
            devices: BTreeSet::new(),
            overlaid: false,
            relaxed: false,
            varied: false,
        })
    }
}

/// `POST /v1/terminate`.
#[derive(Debug, Serialize, Deserialize)]
pub struct TerminateBody {
    /// The instance id.
    pub instance: String,
    /// Required installation and cluster.
    #[serde(flatten)]
    pub scope: ListBody,
}

/// `POST /v1/list`.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListBody {
    /// The installation of the instances.
    pub installation: String,
    /// The cluster of the instances.
    pub cluster: String,
}

/// An offering.
#[derive(Debug, Serialize, Deserialize)]
pub struct OfferingBody {
    instance_type: String,
    zone: String,
    capacity_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reservation: Option<String>,
}

impl From<OfferingKey> for OfferingBody {
    fn from(key: OfferingKey) -> Self {
        Self {
            instance_type: key.instance_type.0,
            zone: key.zone.0,
            capacity_type: key.capacity_type.as_str().to_owned(),
            reservation: key.reservation.map(|id| id.0.clone()),
        }
    }
}

impl TryFrom<OfferingBody> for OfferingKey {
    type Error = FormatError;

    fn try_from(body: OfferingBody) -> Result<Self, FormatError> {
        let capacity_type = CapacityType::parse(&body.capacity_type)
            .ok_or(FormatError::CapacityType(body.capacity_type))?;
        Ok(Self {
            instance_type: body.instance_type.into(),
            zone: body.zone.into(),
            capacity_type,
            reservation: body.reservation.map(|id| Box::new(id.into())),
        })
    }
}

/// A taint of a Node.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaintBody {
    key: String,
    value: String,
    effect: String,
}

impl From<Taint> for TaintBody {
    fn from(taint: Taint) -> Self {
        Self { key: taint.key, value: taint.value, effect: taint.effect.as_str().to_owned() }
    }
}

impl TryFrom<TaintBody> for Taint {
    type Error = FormatError;

    fn try_from(body: TaintBody) -> Result<Self, FormatError> {
        Ok(Self {
            key: body.key,
            value: body.value,
            effect: Effect::parse(&body.effect).ok_or(FormatError::TaintEffect(body.effect))?,
        })
    }
}

/// An instance. `GET /v1/instances` returns the same format.
#[derive(Debug, Serialize, Deserialize)]
pub struct InstanceBody {
    id: String,
    #[serde(flatten)]
    offering: OfferingBody,
    state: String,
    launched: Timestamp,
    tags: Labels,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<NodeBody>,
}

/// The Node that an instance will register.
#[derive(Debug, Serialize, Deserialize)]
struct NodeBody {
    name: String,
    provider_id: String,
}

const STATES: [(InstanceState, &str); 6] = [
    (InstanceState::Pending, "pending"),
    (InstanceState::Running, "running"),
    (InstanceState::Stopping, "stopping"),
    (InstanceState::Stopped, "stopped"),
    (InstanceState::ShuttingDown, "shutting-down"),
    (InstanceState::Terminated, "terminated"),
];

fn state_name(state: InstanceState) -> String {
    let found = STATES.iter().find(|(it, _)| *it == state);
    found.map_or("", |(_, name)| name).to_owned()
}

fn parse_state(name: String) -> Result<InstanceState, FormatError> {
    let found = STATES.iter().find(|(_, it)| *it == name);
    found.map(|(state, _)| *state).ok_or(FormatError::InstanceState(name))
}

impl From<Instance> for InstanceBody {
    fn from(instance: Instance) -> Self {
        Self {
            id: instance.id.0,
            offering: instance.offering.into(),
            state: state_name(instance.state),
            launched: instance.launched,
            tags: Arc::unwrap_or_clone(instance.tags),
            node: instance
                .node
                .map(|node| NodeBody { name: node.name.0, provider_id: node.provider_id }),
        }
    }
}

impl TryFrom<InstanceBody> for Instance {
    type Error = FormatError;

    fn try_from(body: InstanceBody) -> Result<Self, FormatError> {
        Ok(Self {
            id: body.id.into(),
            offering: body.offering.try_into()?,
            state: parse_state(body.state)?,
            launched: body.launched,
            tags: body.tags.into(),
            node: body.node.map(|node| {
                Box::new(ExpectedNode { name: NodeName(node.name), provider_id: node.provider_id })
            }),
            facts: None,
        })
    }
}

/// An offering that was refused, and why.
#[derive(Debug, Serialize, Deserialize)]
pub struct RefusalBody {
    #[serde(flatten)]
    offering: OfferingBody,
    kind: String,
}

impl From<OfferingRefusal> for RefusalBody {
    fn from(refusal: OfferingRefusal) -> Self {
        Self { offering: refusal.offering.into(), kind: refusal.kind.as_str().to_owned() }
    }
}

impl TryFrom<RefusalBody> for OfferingRefusal {
    type Error = FormatError;

    fn try_from(body: RefusalBody) -> Result<Self, FormatError> {
        let found = RefusalKind::ALL.iter().find(|(_, name)| *name == body.kind);
        let (kind, _) = found.ok_or(FormatError::RefusalKind(body.kind))?;
        Ok(Self { offering: body.offering.try_into()?, kind: *kind })
    }
}

/// The response of every call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerBody {
    /// An instance was launched.
    Launched(InstanceBody),
    /// No instance was created.
    Refused(Vec<RefusalBody>),
    /// The instance is being terminated and is in this state.
    Terminating(String),
    /// The listed instances.
    Instances(Vec<InstanceBody>),
    /// The call succeeded and has no result.
    Done {},
    /// The call failed.
    Failed {
        /// The kind of failure. An unknown kind counts as an unknown outcome.
        kind: String,
        /// The reason.
        text: String,
    },
}

const FAILURES: [FailureKind; 6] = [
    FailureKind::Conflict,
    FailureKind::Gone,
    FailureKind::Throttled,
    FailureKind::Denied,
    FailureKind::Invalid,
    FailureKind::Unknown,
];

impl From<CommandResult> for AnswerBody {
    fn from(answer: CommandResult) -> Self {
        match answer {
            CommandResult::Launched(instance) => Self::Launched(instance.into()),
            CommandResult::LaunchRefused(refusals) => {
                Self::Refused(refusals.into_iter().map(RefusalBody::from).collect())
            }
            CommandResult::Terminating(state) => Self::Terminating(state_name(state)),
            CommandResult::Instances(instances) => {
                Self::Instances(instances.into_iter().map(InstanceBody::from).collect())
            }
            CommandResult::Done => Self::Done {},
            CommandResult::Failed { kind, text } => {
                Self::Failed { kind: kind.as_str().to_owned(), text }
            }
            CommandResult::EvictRefused(_)
            | CommandResult::Attachments(_)
            | CommandResult::Pods(_)
            | CommandResult::Probed { .. }
            | CommandResult::Lease(_)
            | CommandResult::Version(_)
            | CommandResult::Granted
            | CommandResult::Denied { .. } => Self::Failed {
                kind: FailureKind::Invalid.as_str().to_owned(),
                text: "not a response of a provider".to_owned(),
            },
        }
    }
}

impl TryFrom<AnswerBody> for CommandResult {
    type Error = FormatError;

    fn try_from(body: AnswerBody) -> Result<Self, FormatError> {
        Ok(match body {
            AnswerBody::Launched(instance) => Self::Launched(instance.try_into()?),
            AnswerBody::Refused(refusals) => {
                let refusals = refusals.into_iter().map(OfferingRefusal::try_from);
                Self::LaunchRefused(refusals.collect::<Result<_, _>>()?)
            }
            AnswerBody::Terminating(name) => Self::Terminating(parse_state(name)?),
            AnswerBody::Instances(instances) => {
                let instances = instances.into_iter().map(Instance::try_from);
                Self::Instances(instances.collect::<Result<_, _>>()?)
            }
            AnswerBody::Done {} => Self::Done,
            AnswerBody::Failed { kind, text } => {
                let known = FAILURES.into_iter().find(|it| it.as_str() == kind);
                Self::Failed { kind: known.unwrap_or(FailureKind::Unknown), text }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::{AnswerBody, FAILURES, STATES};
    use crate::model::instance::{CapacityType, ExpectedNode, Instance, OfferingKey};
    use crate::provider::{CommandResult, OfferingRefusal, RefusalKind};

    fn round_trip(answer: CommandResult) {
        let json = serde_json::to_string(&AnswerBody::from(answer.clone())).expect("json");
        let body: AnswerBody = serde_json::from_str(&json).expect("a body");
        assert_eq!(CommandResult::try_from(body), Ok(answer), "{json}");
    }

    #[test]
    fn command_results_round_trip_as_json() {
        round_trip(CommandResult::Done);
        let offering = OfferingKey {
            instance_type: "a.b".into(),
            zone: "z".into(),
            capacity_type: CapacityType::Reserved,
            reservation: Some(Box::new("cr-1".into())),
        };
        for (state, _) in STATES {
            round_trip(CommandResult::Launched(Instance {
                id: "i-1".into(),
                offering: offering.clone(),
                state,
                launched: Timestamp::UNIX_EPOCH,
                tags: Arc::new([("a".to_owned(), "b".to_owned())].into()),
                node: Some(Box::new(ExpectedNode {
                    name: "n".into(),
                    provider_id: "cloud:///i-1".into(),
                })),
                facts: None,
            }));
            round_trip(CommandResult::Terminating(state));
        }
        for (kind, _) in RefusalKind::ALL {
            round_trip(CommandResult::LaunchRefused(vec![OfferingRefusal {
                offering: offering.clone(),
                kind,
            }]));
        }
        for kind in FAILURES {
            round_trip(CommandResult::Failed { kind, text: "text".into() });
        }
        round_trip(CommandResult::Instances(Vec::new()));
    }
}
